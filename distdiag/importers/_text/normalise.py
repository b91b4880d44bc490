"""What a process printed, without what terminals, progress bars, launchers and collectors put around it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from distdiag.importers._text.times import Stamp, stamp_in, stamp_of_glog

LONGEST_NUMBER = 15
"""Digits of the longest counter, or nanoseconds of a fraction, that anything prints; damage makes longer ones."""
MAX_PREFIXES = 6
"""More launchers and collectors than that are not stacked on one another."""
MAX_HEADS = 16
LONGEST_HEAD = 120
"""Characters that anything writes before a line of a process; what is longer is said by somebody."""

_NO_NUMBER = re.compile(r"\d{16,}")
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_PLACE = re.compile(r"[ \]]\s*\[\d{1,6}/\d{1,6}[\]$]\s*$")
"""Where a terminal that is scrolled says how far, at the end of its lines."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_GLOG = (
    r"\[[EWIF](?:(?P<month>\d{1,2})(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d\.\d+))? "
    r"(?P<file>[\w./-]+\.(?:cpp|cc|hpp|h|cu)):(?P<line>\d+)\] ?"
)
_MESSAGE = re.compile(_GLOG)
_NAMELESS_GLOG = re.sub(r"\?P<\w+>", "?:", _GLOG)
_STARTS = re.compile(rf"(?:\[rank\d+\]: ?)?{_NAMELESS_GLOG}|Traceback \(most recent call last\):")
"""Where a message begins, wherever it stands in a line: bars and other ranks are glued in front of it."""
_BEGINS = "Traceback (most recent call last):"
_HEAD_CLOCK = re.compile(r"(?:\d{4}[-/]\d\d[-/]\d\d.)?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|\d{10,}")
_HEAD_RANK = re.compile(r"(?<![a-z_])(?:global_?)?rank[ :=_-]*(\d{1,7})|\[r(\d{1,7})[/\]]", re.IGNORECASE)
_HEAD_LEVEL = re.compile(r"ERROR|WARN|INFO|DEBUG|CRITICAL")
"""What loggers write, of any process, tells no process from another."""
_OF_BLOCK = re.compile(r"\s*traceback\s*:")
"""What torchrun writes before a traceback in its table of failures, which names the rank itself."""
_BAR = re.compile(r"(?P<label>[^|\r]*?)\s*(?P<percent>\d{1,3})%\|")
_ELASTIC = re.compile(r"[EWI](?P<month>\d\d)(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d\.\d+) +\d+ [\w./-]+\.py:\d+\] ")

_AFTER_HOST = r"(?=\[|Traceback|  |[A-Za-z_.]+(?:Error|Exception|Interrupt)\b)"
"""What tells the name of a host before a message from any other word with a colon."""
_PREFIXES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("quote", re.compile(r"(?:> ?)+")),
    ("rank", re.compile(r"\[rank:? ?(?P<rank>\d+)\]:? ?")),
    ("mpi", re.compile(r"\[(?:\d+,(?:mpirank:)?)?(?P<rank>\d+)(?:,[\w.-]+)?\]<std(?:err|out)>:")),
    ("role", re.compile(r"\[(?P<label>[A-Za-z_]+(?P<local>\d+))\]:")),
    ("vllm", re.compile(r"\((?P<label>(?:Vllm)?Worker[ _]TP(?P<local>\d+)(?:_EP\d+)? pid=(?P<pid>\d+))\) ?")),
    (
        "ray",
        re.compile(r"\((?P<label>[\w.]+(?: rank=(?P<rank>\d+))? pid=(?P<pid>\d+))(?:, ip=(?P<host>[\w.:-]+))?\) ?"),
    ),
    ("logger", re.compile(r"(?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]+\.py:\d+\] ?")),
    (
        "tensor-parallel",
        re.compile(r"\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d (?P<label>(?:DP\d+ )?TP(?P<local>\d+)(?: \w+)*)\] ?"),
    ),
    ("collector", re.compile(r" *\|? ?\d{4}-\d\d-\d\d[T ][\d:.,]+Z?(?:[+-]\d\d:?\d\d)? (?:\| |std(?:err|out) [FP] )")),
    (
        "collector",
        re.compile(
            r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) "
            rf"(?:(?P<label>[\w./-]*\d[\w./-]*) {_AFTER_HOST})?"
        ),
    ),
    ("pod", re.compile(r"\[pod/(?P<label>[\w.-]+)(?:/[\w.-]+)?\] ")),
    (
        "journal",
        re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<label>[\w.-]+ [\w./-]+(?:\[(?P<pid>\d+)\])?): "),
    ),
    ("stern", re.compile(r"(?P<label>[a-z0-9.]+(?:-[a-z0-9.]+)+ [a-z][a-z0-9-]*) " + _AFTER_HOST)),
    ("compose", re.compile(r"(?P<label>[\w.-]+) +\| ?")),
    ("pid", re.compile(r"\[(?P<label>(?P<pid>\d{2,7}))\] (?!is setting up)")),
    ("host", re.compile(r"(?P<label>(?=[\w.-]*[\d-])(?![\w.]*Error\b|E[A-Z]\d{4}:)[A-Za-z][\w.-]*): " + _AFTER_HOST)),
    ("task", re.compile(r" {0,4}(?P<task>\d{1,5}): ")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One message line of one process."""

    number: int
    text: str
    """Without prefixes; its own indentation is kept."""
    rank: int | None = None
    """Global rank, where the line itself or the launcher says it."""
    local_rank: int | None = None
    """Rank on its host, as a launcher writes it."""
    task: int | None = None
    """A number before the line, which may be that of a task; or part of what is said."""
    label: str = ""
    """What launchers and collectors wrote before it; lines of one process share it."""
    pid: int | None = None
    stamp: Stamp | None = None
    borrowed: bool = False
    """Whether the moment is that of a line before it: it was said then, or any time later."""
    source: str | None = None
    """C++ file that logged it."""
    logged: bool = False
    """Whether a logger wrote it that puts its prefix before the first line of a message only."""
    headed: bool = False
    """Whether its label was only known from some line on: who has it in others is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A progress bar that was drawn on a line."""

    number: int
    label: str
    percent: int


def clean(data: bytes) -> str:
    """Return a line as text without colours and control characters; carriage returns are kept."""
    text = _ANSI.sub("", data.decode(errors="replace").replace("\r\r", "\r"))
    text = _PLACE.sub("", text)
    return _NO_NUMBER.sub(_shortened, _CONTROL.sub("", text)).rstrip("\r")


def _shortened(found: re.Match[str]) -> str:
    return found[0][:LONGEST_NUMBER]


class Heads:
    """What stands before the lines of processes in a file though nothing here knows it: tracebacks show where it ends.

    All their lines bear it, or their first one alone.
    """

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[str, re.Pattern[str]] = {}

    def split(self, text: str) -> tuple[str, str]:
        """Return what stands before a message, and the message."""
        head = text[: max(0, text.find(_BEGINS))]
        unknown = head.strip() and not _OF_BLOCK.match(head) and "%|" not in head
        if unknown and len(head) <= LONGEST_HEAD and len(self._known) < MAX_HEADS:
            shape = re.sub(r"\d+", r"\\d+", re.escape(head))
            self._known.setdefault(shape, re.compile(shape))
        found = next((match for known in self._known.values() if (match := known.match(text))), None)
        return (found[0], text[found.end() :]) if found else ("", text)


def normalise(number: int, text: str, heads: Heads | None = None) -> Iterator[Line]:
    """Yield the messages in a line: usually one, more where several were glued together."""
    for piece in text.split("\r"):
        yield from _messages(number, piece, heads)


def bars_in(number: int, text: str) -> Iterator[Bar]:
    """Yield the progress bars of a line that have a label."""
    for piece in text.split("\r"):
        found = _BAR.match(piece.lstrip())
        if found and int(found["percent"]) <= 100 and found["label"].strip(" :"):
            yield Bar(number=number, label=found["label"].strip(" :"), percent=int(found["percent"]))


def _messages(number: int, piece: str, heads: Heads | None) -> Iterator[Line]:
    prefixes = _Prefixes(piece)
    head, body = heads.split(prefixes.rest) if heads is not None else ("", prefixes.rest)
    starts = [match.start() for match in _STARTS.finditer(body)]
    if not starts or starts[0] > 0:
        starts.insert(0, 0)
    for start, end in zip(starts, [*starts[1:], len(body)], strict=True):
        line = prefixes.line(number, body[start:end] if end == len(body) else body[start:end].rstrip())
        yield _headed(line, head) if head else line


def _headed(line: Line, head: str) -> Line:
    """Return a line with what stands before it taken for its process."""
    rank = _HEAD_RANK.search(head)
    source = _HEAD_CLOCK.sub("", head).strip()
    tells = not _HEAD_LEVEL.search(source) and any(map(str.isdigit, source))
    return replace(
        line,
        rank=line.rank if line.rank is not None or rank is None else int(rank[1] or rank[2]),
        label=f"{line.label} {source}".strip() if tells else line.label,
        stamp=line.stamp or stamp_in(head),
        logged=True,
        headed=True,
    )


class _Prefixes:
    """Takes off what stands before a message."""

    def __init__(self, text: str) -> None:
        self.rank: int | None = None
        self.local_rank: int | None = None
        self.task: int | None = None
        self.pid: int | None = None
        self.labels: list[str] = []
        self.stamp: Stamp | None = None
        self.logged = False
        self.rest = self._strip(text)

    def line(self, number: int, text: str) -> Line:
        """Return the message that stands behind the prefixes, which may begin with more of them."""
        inner = _Prefixes(text) if text != self.rest else self
        text, rank = inner.rest, inner.rank if inner.rank is not None else self.rank
        stamp = inner.stamp or self.stamp
        found = _MESSAGE.match(text)
        source = None
        if found:
            text, source = text[found.end() :], found["file"]
            stamp = stamp_of_glog(found["month"], found["day"], found["clock"]) or stamp
        elif elastic := _ELASTIC.match(text):
            text = text[elastic.end() :]
            stamp = stamp_of_glog(elastic["month"], elastic["day"], elastic["clock"]) or stamp
        return Line(
            number=number,
            text=text,
            rank=rank,
            local_rank=inner.local_rank if inner.local_rank is not None else self.local_rank,
            task=inner.task if inner.task is not None else self.task,
            label=" ".join(self.labels if inner is self else [*self.labels, *inner.labels]),
            pid=inner.pid if inner.pid is not None else self.pid,
            stamp=stamp or stamp_in(text),
            source=source,
            logged=inner.logged or self.logged,
        )

    def _strip(self, text: str) -> str:
        for _ in range(MAX_PREFIXES):
            found = next(((kind, match) for kind, pattern in _PREFIXES if (match := pattern.match(text))), None)
            if found is None:
                break
            kind, match = found
            self._take(kind, match)
            text = text[match.end() :]
        return text

    def _take(self, kind: str, match: re.Match[str]) -> None:
        groups = match.groupdict()
        if groups.get("rank") is not None:
            self.rank = int(str(groups["rank"]))
        self.logged = self.logged or kind == "tensor-parallel"
        if kind in ("collector", "tensor-parallel"):
            self.stamp = stamp_in(match[0])
        if groups.get("label"):
            self.labels.append(str(groups["label"]))
        if groups.get("local") is not None:
            self.local_rank = int(str(groups["local"]))
        if groups.get("task") is not None:
            self.task = int(str(groups["task"]))
        if groups.get("pid") is not None:
            self.pid = int(str(groups["pid"]))
