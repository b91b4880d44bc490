"""Dumps of stacks: what py-spy, pystack, gdb and faulthandler print, and py-spy's JSON and folded stacks."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from distdiag import events
from distdiag.importers._text.facts import Role, Stacked, What
from distdiag.importers._text.kinds import BlockFamily
from distdiag.importers._text.normalise import Line
from distdiag.run.crashes import SIGNALS

MAX_FRAMES = 1000
"""Python's own limit of recursion."""
MAX_THREADS = 4096
PY_SPY = "py-spy"
FAULTHANDLER = "faulthandler"
PYSTACK = "pystack"
GDB = "gdb"
MAIN = "MainThread"
STANDS_SHARE = 0.8
"""A process of whose samples so many are of one stack stands there; the rest are of its threads, or of before."""

BEGINS_THREAD = re.compile(r"\s*Thread (?P<id>(?:0x)?[0-9A-Fa-f]+) \((?:idle|active)[^)]*\)(?:: \"(?P<name>[^\"]*)\")?")
BEGINS_FAULT_THREAD = re.compile(
    r"\s*(?P<current>Current thread|Thread) (?P<id>0x[0-9a-f]+)(?: \[(?P<name>.*)\])? \(most recent call first\):"
)
BEGINS_PYSTACK_THREAD = re.compile(
    r"\s*Traceback for thread (?P<id>\d+) (?:\((?P<name>[^)]*)\) )?.*\(most recent call last\):"
)
BEGINS_GDB_THREAD = re.compile(r"Thread \d+ \(Thread 0x[0-9a-f]+ \(LWP (?P<id>\d+)\)(?: \"(?P<name>[^\"]*)\")?\):")
FOLDED = re.compile(r"(?P<frames>[^;\n]+ \([^()\n]+:\d+\)(?:;[^;\n]+)+) (?P<count>\d+)\s*")
_PYSTACK_FRAME = re.compile(
    r'\s*\((?:Python|C|Cython)\) File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.+?)(?: \([^()]*\))?\s*$'
)
_GDB_FRAME = re.compile(
    r"#\d+ +(?:0x[0-9a-f]+ in )?(?P<function>[^\s(][^(]*?) ?\(.*\)(?: (?:at|from) (?P<file>\S+?)(?::(?P<line>\d+))?)?$"
)
_GDB_PYTHON_FRAME = re.compile(
    r".*\bFrame 0x[0-9a-f]+, for file (?P<file>.+?), line (?P<line>\d+), in (?P<function>[\w<>.]+)"
)
_FOLDED_FRAME = re.compile(r"(?P<function>.+) \((?P<place>[^()]+:\d+)\)")
_PROCESS = re.compile(r"\s*Process (?P<pid>\d+): (?P<command>.*)")
_RANK = re.compile(r"[\s#=*\[-]*rank[ :=]*(?P<rank>\d+)\b", re.IGNORECASE)
_FRAME = re.compile(r"\s+(?P<function>\S.*?) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)\s*$")
_FAULT_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)')
_LOCAL_RANK = re.compile(r"--local[-_]rank[= ](\d+)")


@dataclass(slots=True, kw_only=True)
class Dump:
    """The stacks of one process at one moment."""

    source: str
    rank: int | None = None
    pid: int = 0
    command: str = ""
    threads: list[events.ThreadStack] = field(default_factory=list)


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Process(msgspec.Struct):
    pid: int = 0
    command_line: str = ""


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_name: str | None = None
    thread_id: int = 0
    pid: int = 0
    process_info: _Process | None = None


_json = msgspec.json.Decoder(list[_Thread])


def from_json(data: bytes) -> Iterator[Dump]:
    """Yield the process of a dump that py-spy wrote as JSON; nothing if it is none."""
    try:
        threads = _json.decode(data)
    except msgspec.MsgspecError:
        return
    if not threads:
        return
    info = threads[0].process_info
    command = info.command_line if info is not None else ""
    yield Dump(
        source=PY_SPY,
        rank=_rank_in(command),
        pid=threads[0].pid or (info.pid if info is not None else 0),
        command=command,
        threads=[
            _stack(
                thread.thread_name,
                str(thread.thread_id),
                [f"{f.filename}:{f.line} {f.name}" for f in reversed(thread.frames[:MAX_FRAMES])],
            )
            for thread in threads[:MAX_THREADS]
        ],
    )


def from_text(lines: Iterable[str]) -> Iterator[Dump]:
    """Yield the processes of a dump in text."""
    reader = _Reader()
    for line in lines:
        yield from reader.take(line)
    yield from reader.end()


def from_folded(lines: Iterable[str]) -> Iterator[Dump]:
    """Yield the process of a file of folded stacks, ``outer;inner count``, if it stood in one place."""
    counts: dict[str, int] = {}
    for line in lines:
        if found := FOLDED.fullmatch(line):
            counts[found["frames"]] = counts.get(found["frames"], 0) + int(found["count"])
    most = max(counts, key=lambda frames: counts[frames], default=None)
    if most is None or counts[most] < STANDS_SHARE * sum(counts.values()):
        return
    matches = (_FOLDED_FRAME.fullmatch(frame) for frame in most.split(";"))
    frames = [f"{found['place']} {found['function']}" for found in matches if found][-MAX_FRAMES:]
    yield Dump(source=PY_SPY, threads=[events.ThreadStack(thread=MAIN, frames=frames)])


class _Reader:
    """Takes lines and yields each process when the next one begins."""

    def __init__(self) -> None:
        self._dump: Dump | None = None
        self._frames: list[str] = []
        self._name: str | None = None
        self._number = ""
        self._rank: int | None = None
        self._outermost_first = False

    def take(self, line: str) -> Iterator[Dump]:
        if found := _PROCESS.match(line):
            yield from self.end()
            command = found["command"]
            rank = self._rank if self._rank is not None else _rank_in(command)
            self._dump = Dump(source=PY_SPY, rank=rank, pid=int(found["pid"]), command=command)
        elif found := BEGINS_THREAD.match(line):
            self._begin(found["name"], found["id"], PY_SPY)
        elif found := BEGINS_FAULT_THREAD.match(line):
            self._begin(None, found["id"], FAULTHANDLER)
        elif found := BEGINS_PYSTACK_THREAD.match(line):
            self._begin(None, found["id"], PYSTACK)
            self._outermost_first = True
        elif found := BEGINS_GDB_THREAD.match(line):
            self._begin(None, found["id"], GDB)
        elif found := _first_match(line):
            self._frame(found)
        elif (found := _RANK.match(line)) and not line.startswith(" "):
            yield from self.end()
            self._rank = int(found["rank"])

    def end(self) -> Iterator[Dump]:
        """Yield the process that was being read."""
        self._finish()
        if self._dump is not None and self._dump.threads:
            yield self._dump
            self._rank = None
        self._dump = None

    def _begin(self, name: str | None, number: str, source: str) -> None:
        self._finish()
        if self._dump is None:
            self._dump = Dump(source=source, rank=self._rank)
        self._name, self._number, self._outermost_first = name, number, False

    def _frame(self, found: re.Match[str]) -> None:
        if self._number and len(self._frames) < MAX_FRAMES:
            line = found["line"] if found["line"] and found["line"].isdecimal() else "0"
            self._frames.append(f"{found['file'] or '??'}:{line} {found['function']}")

    def _finish(self) -> None:
        if self._dump is not None and self._frames and len(self._dump.threads) < MAX_THREADS:
            frames = self._frames if self._outermost_first else self._frames[::-1]
            self._dump.threads.append(_stack(self._name, self._number, frames))
        self._frames, self._name, self._number = [], None, ""


def _first_match(line: str) -> re.Match[str] | None:
    patterns = (_PYSTACK_FRAME, _FAULT_FRAME, _FRAME, _GDB_PYTHON_FRAME, _GDB_FRAME)
    return next((found for pattern in patterns if (found := pattern.match(line))), None)


def _stack(name: str | None, number: str, frames: list[str]) -> events.ThreadStack:
    """Return the stack of a thread; where nothing names it, the one that began with a module is the main one."""
    main = bool(frames) and frames[0].endswith(" <module>")
    return events.ThreadStack(thread=name or (MAIN if main else number), frames=frames)


def _rank_in(command: str) -> int | None:
    found = _LOCAL_RANK.search(command)
    return int(found[1]) if found else None


MAX_LINES = 20_000
_FATAL = re.compile(r"Fatal Python error: (?P<reason>[^\n]+)")
_BELONGS = re.compile(r'\s*(?:$|\.\.\.|File ".*", line (?:\d+|\?\?\?) in )')


class _Dump:
    """The threads of one process, the running one first or last."""

    def __init__(self, line: Line) -> None:
        found = _FATAL.search(line.text)
        self._signal = SIGNALS.get(found["reason"].strip()) if found else None
        self._lines = [line.text]

    def feed(self, line: Line) -> bool:
        text = line.text
        belongs = _BELONGS.match(text) or BEGINS_FAULT_THREAD.match(text)
        if not belongs or len(self._lines) >= MAX_LINES:
            return False
        self._lines.append(text)
        return True

    def close(self) -> Iterable[tuple[What, Role]]:
        for dump in from_text(self._lines):
            yield Stacked(threads=tuple(dump.threads), signal=self._signal), Role.UNKNOWN
            return
        if self._signal is not None:
            yield Stacked(threads=(), signal=self._signal), Role.UNKNOWN


def _dump(line: Line) -> _Dump | None:
    begins = _FATAL.match(line.text) or BEGINS_FAULT_THREAD.match(line.text)
    return _Dump(line) if begins else None


BLOCKS = (BlockFamily(name="stacks", needles=("Fatal Python error:", "(most recent call first):"), open=_dump),)
