"""Python tracebacks and C++ terminations, with what their messages tell."""

import re
import signal
from collections.abc import Iterable, Iterator

from distdiag.importers._text.facts import Ended, Raised, Role, Speaker, What
from distdiag.importers._text.kinds import BlockFamily, Family
from distdiag.importers._text.names import group_rank, group_tag
from distdiag.importers._text.normalise import Line

MAX_FRAMES = 200
"""Recursion errors have a thousand; the outermost and the innermost are what matters."""
MAX_MESSAGE = 4000
MAX_MESSAGE_LINES = 12
MAX_CAUSES = 8

CONSEQUENCE = re.compile(
    r"timed out|time-?out|clients joined|connection (?:was )?(?:reset|closed|refused|abort(?:ed)?)\b"
    r"|closed by (?:remote )?peer|broken pipe|read error|write error|remote process|recvvalue failed|failed to recv"
    r"|pair closure|monitoredBarrier"
    r"|Remote Rank did not send|Getting socket times out|Hccl\w+, error code is (?:6|9)\b"
    r"|communicator (?:was )?aborted|ncclRemoteError|connection to the C10d store has failed"
    r"|Rendezvous(?:Connection|Timeout|Closed)Error|ChildFailedError|(?:RayActor|ActorDied|WorkerCrashed)Error|NET/IB.*completion|ProcessExitedException|ProcessRaisedException",
    re.IGNORECASE,
)
"""What an exception says that others caused: a wait gave up, a peer went away, a launcher passes it on."""
_OF_OTHERS = re.compile(
    r"^(?:requests|urllib3|http|httpx|httpcore|aiohttp|huggingface_hub|botocore|google|azure|fsspec|s3fs|wandb)\."
)
"""Types of exceptions that tell of services outside of the job, in whatever words."""
_OF_LAUNCHER = "ChildFailedError"
"""Raised by torchrun's own process, which is no rank; which of them failed stands in the block below it."""
_OF_NPU = re.compile(r"error code(?: is |:)5070(?:14|15|16|34|35|53|54)\b")
"""Codes of a device of Huawei's that failed by itself: its cores, or its memory."""
ASKED = re.compile(r"^(?:\w+\.)*(?:SystemExit|KeyboardInterrupt|SignalException)\b|Received [\w.]+ death signal")
"""How processes end that somebody told to."""

_FRAME = re.compile(r'(?P<indent>\s*)File "(?P<file>.+?)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_BEGINS = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
_TYPE = re.compile(
    r"(?P<type>(?:[\w]+\.)*[A-Z_]\w*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Timeout|Group|StopIteration)?)"
    r"(?::\s?(?P<message>.*))?$"
)
_BARE = re.compile(r"(?P<type>(?:\w+\.)*(?:OutOfMemoryError|RuntimeError|MemoryError)): (?P<message>.+)")
_OUT_OF_MEMORY = re.compile(r"(?:CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate")
_THROWN = re.compile(r"terminate called after throwing an instance of '(?P<type>[^' ]+)'")
_THROWN_REST = re.compile(r"[\w:]+'$")
"""What is left of the line of a second process that was printed into that of the first."""
_WHAT = re.compile(r"(?:\s*what\(\):\s*)+(?P<message>.*)")
_CONTINUED = re.compile(r"\[/|Original exception|nccl|Last error|\[ERROR\] [\d:-]+ \(PID:\d+, Device:")
"""How further lines of c10d's messages begin."""
_EXITED = re.compile(
    r"process (?P<process>\d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code>-?\d+))"
)
_WATCHED = re.compile(r"watchdog thread terminated with exception: (?P<error>(?!.*Watchdog caught).+)")
_TAG_ALONE = re.compile(r"\[Rank \d+\]")
"""Where a terminal broke the line of a time-out."""
_DEVICE_ERROR = ("CUDA error", "HIP error", "XPU error")
LAST_ERROR = "Last error:"
_UNREDUCED = re.compile(r"Expected to have finished reduction in the prior iteration before starting a new one")
_SPAWNED = re.compile(r"-- Process (\d+) terminated with the following error:")


def of_watchdog(text: str) -> Raised | None:
    """Return the error of the device, or of NCCL, that ended a watchdog thread and with it the process."""
    found = _WATCHED.search(text)
    if not found or _TAG_ALONE.fullmatch(found["error"].strip()):
        return None
    kind, colon, rest = found["error"].strip().partition(": ")
    of_device = colon and kind.startswith(_DEVICE_ERROR)
    return Raised(
        type=kind if of_device else "DistBackendError",
        message=(rest if of_device else found["error"].strip())[:MAX_MESSAGE],
        uncaught=True,
        fatal=True,
        group=group_tag(text),
        group_rank=group_rank(text),
    )


def role_of(raised: Raised) -> Role:
    """Return whether an exception is the rank's own, or what others did to it."""
    said = f"{raised.type}: {raised.message}"
    if ASKED.search(said):
        return Role.TEARDOWN
    if _OF_OTHERS.match(raised.type) or _OF_NPU.search(raised.message):
        return Role.INITIATING
    return Role.CASCADE if CONSEQUENCE.search(said) else Role.INITIATING


class Traceback:
    """A traceback, and those chained to it."""

    def __init__(self, line: Line) -> None:
        del line
        self._frames: list[str] = []
        self._indent = -1
        self._type: str | None = None
        self._message: list[str] = []
        self._before: list[Raised] = []
        self._awaiting = False
        self._blank = False

    def feed(self, line: Line) -> bool:
        text = line.text
        if self._awaiting:
            return self._next_in_chain(text)
        found = _FRAME.match(text)
        if found and self._type is None:
            return self._take_frame(found)
        if self._type is None:
            return self._take_type(text)
        if any(words in text for words in _CHAINED):
            self._chain()
            return True
        return self._take_more(line)

    def close(self) -> Iterable[tuple[What, Role]]:
        if self._type is None or (self._type.endswith(_OF_LAUNCHER) and not self._before):
            return ()
        last = self._raised()
        chain = [last, *reversed(self._before[-MAX_CAUSES:])]
        told = [each for each in chain if role_of(each) is Role.INITIATING][-1:]
        # What a barrier in ``finally`` says hides the error that led there: both are told.
        raised = tuple((each, role_of(each)) for each in (*(each for each in told if each is not last), last))
        return (*raised, *spawned_end(last))

    def _raised(self) -> Raised:
        return Raised(
            type=self._type or "",
            message=telling_first("\n".join(self._message).strip())[:MAX_MESSAGE],
            frames=tuple(self._frames),
            causes=tuple(f"{each.type}: {each.message}" for each in reversed(self._before[-MAX_CAUSES:])),
        )

    def frame(self, text: str) -> None:
        """Take a frame, ``file:line function``."""
        self._indent = max(self._indent, 0)
        if len(self._frames) >= MAX_FRAMES:
            del self._frames[MAX_FRAMES // 2]
        self._frames.append(text)

    def _next_in_chain(self, text: str) -> bool:
        if text.strip() == _BEGINS:
            self._awaiting = False
            self._frames, self._indent = [], -1
            self._type, self._message = None, []
            return True
        return not text.strip()

    def _take_frame(self, found: re.Match[str]) -> bool:
        self._indent = len(found["indent"])
        self.frame(f"{found['file']}:{found['line']} {found['function'] or '<module>'}")
        return True

    def _take_type(self, text: str) -> bool:
        indent = len(text) - len(text.lstrip())
        if not text.strip() or (self._frames and indent > self._indent) or text.lstrip().startswith("[Previous line"):
            return True  # the source of a frame, and the marks below it
        found = _TYPE.match(text.strip())
        if not found:
            return False
        self._type = found["type"]
        self._message = [found["message"] or ""]
        return True

    def _take_more(self, line: Line) -> bool:
        """Take a further line of a message; a message of its own ends the exception's."""
        text = line.text
        if not text.strip():
            if self._blank:
                return False
            self._blank = True
            return True
        own = line.source is not None or text.strip() == _BEGINS
        if own or self._blank or len(self._message) >= MAX_MESSAGE_LINES:
            return False
        if not _continues(text) and self._message[-1].strip() != LAST_ERROR:
            return False
        self._message.append(text)
        return True

    def _chain(self) -> None:
        self._before.append(self._raised())
        self._awaiting = True


def telling_first(message: str) -> str:
    """Return a message of NCCL's with what went wrong before the words of where and in which version."""
    _, found, rest = message.partition(LAST_ERROR)
    last = rest.strip().split("\n")[0].strip()
    return f"{last}\n{message}" if found and last else message


def _continues(text: str) -> bool:
    """Return whether a line goes on with the message of an exception."""
    return text[:1].isspace() or bool(_CONTINUED.match(text))


def spawned_end(raised: Raised) -> Iterable[tuple[What, Role]]:
    """Return what ``torch.multiprocessing.spawn`` says of the end of a process that could not raise."""
    found = _EXITED.search(raised.message) if raised.type.endswith("ProcessExitedException") else None
    if found:
        code = int(found["code"]) if found["code"] else -signal.Signals.__members__.get(found["signal"], 0)
        if code:
            yield Ended(code=code, rank=int(found["process"]), first=True), Role.INITIATING


class _Termination:
    """A C++ exception that nobody caught."""

    def __init__(self, line: Line) -> None:
        found = _THROWN.search(line.text)
        self._type = found["type"] if found else "std::exception"
        self._message: str | None = None

    def feed(self, line: Line) -> bool:
        found = _WHAT.match(line.text)
        if not found and self._message is None and _THROWN_REST.match(line.text):
            return True
        if not found or self._message is not None:
            return False
        self._message = found["message"]
        return True

    def close(self) -> Iterable[tuple[What, Role]]:
        if not self._message:
            # Cut off before it said why: all that is known is that a process aborted.
            return ((Ended(code=-signal.SIGABRT), Role.UNKNOWN),)
        message = self._message[:MAX_MESSAGE]
        raised = of_watchdog(message) or Raised(type=self._type, message=message, uncaught=True, fatal=True)
        return ((raised, role_of(raised)),)


def bare(line: Line) -> Iterator[What]:
    """Read an exception without its traceback: what people copy, and what a handler prints."""
    found = _BARE.search(line.text)
    if found and _OUT_OF_MEMORY.search(found["message"]):
        yield Raised(type=found["type"], message=found["message"][:MAX_MESSAGE])
    elif not found and _OUT_OF_MEMORY.search(line.text):
        message = line.text[_OUT_OF_MEMORY.search(line.text).start() :]  # type: ignore[union-attr]  # it was found above
        yield Raised(type="OutOfMemoryError", message=message[:MAX_MESSAGE])


def unreduced(line: Line) -> Iterator[What]:
    """Read DDP's word of parameters without gradients, wherever several processes wrote it into one another."""
    found = _UNREDUCED.search(line.text)
    if found:
        yield Raised(type="RuntimeError", message=line.text[found.start() :][:MAX_MESSAGE])


def speaker(line: Line) -> Iterator[What]:
    """Read whose traceback follows."""
    found = _SPAWNED.search(line.text)
    if found:
        yield Speaker(rank=int(found[1]))


FAMILIES = (
    Family(name="out-of-memory", needles=("out of memory. Tried to allocate",), role=Role.INITIATING, parse=bare),
    Family(
        name="unreduced-parameters",
        needles=("Expected to have finished reduction in the prior",),
        role=Role.INITIATING,
        parse=unreduced,
    ),
    Family(name="spawned-process", needles=("terminated with the following error",), role=Role.UNKNOWN, parse=speaker),
)

BLOCKS = (
    BlockFamily(name="traceback", needles=(_BEGINS,), open=Traceback),
    BlockFamily(name="termination", needles=("terminate called after throwing",), open=_Termination),
)
