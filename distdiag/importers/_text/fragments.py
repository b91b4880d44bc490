"""Exceptions that stand in a text without the beginning of their traceback: tails of logs, and what people copy."""

import re
from collections.abc import Iterable

from distdiag.importers._text.exceptions import MAX_MESSAGE, Traceback, role_of, telling_first
from distdiag.importers._text.facts import Raised, Role, What
from distdiag.importers._text.kinds import BlockFamily
from distdiag.importers._text.normalise import Line

MAX_MESSAGE_LINES = 6
MAX_BOXED_LINES = 400
"""Lines of a framed traceback: twenty frames of a dozen lines are what rich shows."""

_FRAME = re.compile(r'\s*File ".+?", line \d+, in \S')
_BARE = re.compile(
    r"(?:^|\s)(?P<type>(?:\w+\.)*(?:DistBackendError|DistNetworkError|DistStoreError|DistError|RuntimeError"
    r"|RendezvousConnectionError|RendezvousTimeoutError|AcceleratorError)): "
    r"(?P<message>(?=.*(?:NCCL error|CUDA error|gloo/transport|[Cc]onnection|[Ss]ocket|[Tt]imed out|DataLoader worker"
    r"|Triton Error|C10d store)).+)"
)
_OWN = (
    "KeyError: ",
    "ValueError: ",
    "TypeError: ",
    "IndexError: ",
    "AttributeError: ",
    "AssertionError: ",
    "FileNotFoundError: ",
    "ModuleNotFoundError: ",
    "ImportError: ",
    "OSError: ",
    "NotImplementedError: ",
    "ZeroDivisionError: ",
)
"""Errors of Python's own, which say enough where a launcher wrote the rank before them."""
_SIGNED = re.compile(rf"(?P<type>{'|'.join(_OWN).replace(': ', '')}): (?P<message>.+)")
_CONTINUES = re.compile(r"nccl\w+Error|nccl\w+: |Last error|ncclInvalidUsage|Duplicate GPU|\w+: Call to |socket\w+: ")
_BEGINS_BOX = re.compile(r"[╭┌].*Traceback \(most recent call last\)")
_BOXED_FRAME = re.compile(r"[│|]\s*(?P<file>/?[^\s:]+\.py):(?P<line>\d+) in (?P<function>[\w<>.]+)")
_ENDS_BOX = ("╰", "└")
_HANDLED = re.compile(r'"message": "(?P<type>(?:\w+\.)*\w+(?:Error|Exception)): ?(?P<message>(?:[^"\\]|\\.)*)')
"""What torchrun's error handler prints of a process: JSON over several lines."""
SHARED_MEMORY = "shared memory (/dev/shm) was full"
"""What is said of a loader's worker; its rank says only that the worker is gone."""
_BUS = "Unexpected bus error encountered in worker"


class _Bare:
    """One line that names an exception, and what NCCL adds to it."""

    def __init__(self, kind: str, message: str) -> None:
        self._type, self._message, self._last = kind, [message], ""

    def feed(self, line: Line) -> bool:
        if len(self._message) >= MAX_MESSAGE_LINES:
            return False
        if not _CONTINUES.match(line.text.strip()) and self._last != "Last error:":
            return False
        self._last = line.text.strip()
        self._message.append(line.text)
        return True

    def close(self) -> Iterable[tuple[What, Role]]:
        raised = Raised(type=self._type, message=telling_first("\n".join(self._message))[:MAX_MESSAGE])
        yield raised, role_of(raised)


class _Boxed:
    """A traceback that rich has put into a frame, and the exception below it."""

    def __init__(self, line: Line) -> None:
        self._inside = Traceback(line)
        self._lines, self._ended = 0, False

    def feed(self, line: Line) -> bool:
        text, self._lines = line.text, self._lines + 1
        if self._ended:
            return self._inside.feed(line)
        found = _BOXED_FRAME.match(text.strip())
        if found:
            self._inside.frame(f"{found['file']}:{found['line']} {found['function']}")
        self._ended = text.strip().startswith(_ENDS_BOX)
        return self._ended or (text.strip()[:1] in ("│", "|", "") and self._lines < MAX_BOXED_LINES)

    def close(self) -> Iterable[tuple[What, Role]]:
        return self._inside.close()


class _BusError:
    """What a data loader's worker prints that found no room in shared memory."""

    def feed(self, line: Line) -> bool:
        return _BUS in line.text

    def close(self) -> Iterable[tuple[What, Role]]:
        message = f"a data loader's worker died of a bus error: {SHARED_MEMORY}"
        yield Raised(type="RuntimeError", message=message), Role.INITIATING


def _midway(line: Line) -> Traceback | None:
    """Open a traceback at one of its frames: the text begins within it."""
    if not _FRAME.match(line.text):
        return None
    opened = Traceback(line)
    opened.feed(line)
    return opened


def _bare(line: Line) -> _Bare | None:
    found = _BARE.search(line.text)
    return _Bare(found["type"], found["message"]) if found else None


def _signed(line: Line) -> _Bare | None:
    found = _SIGNED.match(line.text) if line.rank is not None or line.local_rank is not None else None
    return _Bare(found["type"], found["message"]) if found else None


def _handled(line: Line) -> _Bare | None:
    found = _HANDLED.search(line.text)
    return _Bare(found["type"], found["message"]) if found else None


def _boxed(line: Line) -> _Boxed | None:
    return _Boxed(line) if _BEGINS_BOX.match(line.text.strip()) else None


def _bus_error(line: Line) -> _BusError:
    del line
    return _BusError()


BLOCKS = (
    BlockFamily(name="handled-error", needles=('"message": "',), open=_handled),
    BlockFamily(name="traceback-tail", needles=('File "',), open=_midway),
    BlockFamily(name="framed-traceback", needles=("Traceback (most recent call last)",), open=_boxed),
    BlockFamily(name="shared-memory", needles=(_BUS,), open=_bus_error),
    BlockFamily(
        name="exception-alone",
        needles=("DistBackendError: ", "DistNetworkError: ", "DistStoreError: ", "DistError: ", "RuntimeError: "),
        open=_bare,
    ),
    BlockFamily(name="signed-exception", needles=_OWN, open=_signed),
    BlockFamily(
        name="rendezvous-failed", needles=("RendezvousConnectionError: ", "RendezvousTimeoutError: "), open=_bare
    ),
)
