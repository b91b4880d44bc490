"""What faulthandler wrote beside the logs when a process crashed, was told to stop, or froze."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distdiag.run.frames import CRASH_COLUMNS, frame

if TYPE_CHECKING:
    import pandas as pd

SIGNALS = {
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}
TERMINATED = "SIGTERM"
FROZEN = "frozen"
MAX_CRASH_BYTES = 4 << 20
"""A file that dumps again and again is read up to here; the first dumps say what happened."""

_THREAD = re.compile(r"(?:(?:Current thread|Thread) (0x[0-9a-f]+)(?: \[.*\])?|Stack) \(most recent call first\):")
_RUNNING = ("Current thread", "Stack")
"""How the thread that was running begins; ``Stack`` is what a dump of it alone is called."""
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_FATAL = re.compile(r"Fatal Python error: (.+)")
_SEGMENT = re.compile(r"(?:\.\d{4,})?\.jsonl$")
_FROZEN = re.compile(r"Timeout \(.+\)!")
_LIBRARY = re.compile(
    r"^<|/(?:site|dist)-packages/(?:torch|distdiag|typing_extensions)\b"
    r"|/lib/python3[^/]*/(?!(?:site|dist)-packages/)|/distdiag/(?:hooks|commands)/|/distdiag/\w+\.py:"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The thread that was running when a process dumped its stacks."""

    kind: str
    """``SIGABRT``, ``SIGSEGV`` …, ``SIGTERM`` or ``frozen``."""
    thread: str
    frames: tuple[str, ...]
    """All frames, library frames too, outermost first."""


def crash_frame(logs: Mapping[int, Path]) -> pd.DataFrame:
    """Return the dumps that lie beside the logs, given the first log file of each rank."""
    rows: list[tuple[int, Crash]] = []
    for rank, log in sorted(logs.items()):
        file = log.with_name(_SEGMENT.sub("", log.name) + ".crash.txt")
        if file.is_file():
            rows += [(rank, crash) for crash in crashes_in(file)]
    columns = {name: [getattr(crash, name) for _, crash in rows] for name in ("kind", "thread", "frames")}
    return frame(CRASH_COLUMNS, {"rank": [rank for rank, _ in rows], **columns})


def crashes_in(path: Path) -> Iterator[Crash]:
    """Yield the dumps of one file in the order in which they were written."""
    with path.open("rb") as file:
        text = file.read(MAX_CRASH_BYTES).decode(errors="replace")
    for kind, lines in _dumps(text.splitlines()):
        threads = list(_threads(lines))
        if threads:
            # faulthandler marks the thread that was running; a frozen process has none, its main thread comes last.
            current = next((stack for stack in threads if stack[0]), threads[-1])
            yield Crash(kind=kind, thread=current[1], frames=tuple(reversed(current[2])))
        elif kind != TERMINATED:
            yield Crash(kind=kind, thread="", frames=())


def user_frames(frames: Iterable[str]) -> tuple[str, ...]:
    """Return the frames that are not of torch, the standard library, made-up files or distdiag itself."""
    return tuple(frame for frame in frames if not _LIBRARY.search(frame))


def _dumps(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    kind: str | None = None
    body: list[str] = []
    for line in lines:
        fatal, frozen = _FATAL.match(line), _FROZEN.match(line)
        if fatal or frozen or (kind == TERMINATED and line.startswith(_RUNNING) and _has_current(body)):
            if kind is not None:
                yield kind, body
            body = []
            kind = (
                FROZEN if frozen else TERMINATED if fatal is None else SIGNALS.get(fatal[1].strip(), fatal[1].strip())
            )
        elif kind is None and _THREAD.match(line):
            kind = TERMINATED
        body.append(line)
    if kind is not None:
        yield kind, body


def _has_current(lines: list[str]) -> bool:
    return any(line.startswith(_RUNNING) for line in lines)


def _threads(lines: list[str]) -> Iterator[tuple[bool, str, list[str]]]:
    thread: tuple[bool, str, list[str]] | None = None
    for line in lines:
        header, found = _THREAD.match(line), _FRAME.match(line)
        if header:
            if thread is not None:
                yield thread
            thread = (line.startswith(_RUNNING), header[1] or "", [])
        elif found and thread is not None:
            number = found[2] if found[2].isdecimal() else "0"
            thread[2].append(f"{found[1]}:{number} {found[3]}")
    if thread is not None:
        yield thread
