"""Which files of a directory are logs, and how much of each is written."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from distdiag.errors import DistdiagError

LOG_NAME = re.compile(r"(?P<stem>.+?)(?:\.attempt(?P<attempt>\d+))?(?:\.(?P<segment>\d{4,}))?\.jsonl")
RANK_STEM = re.compile(r"rank(\d+)")
BLOCK_BYTES = 4096
PROBES = 8
"""Blocks looked at behind the supposed end; a log with a hole in it is rare, but must not lose its second half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One segment of one process's log."""

    path: Path
    stem: str
    attempt: int
    segment: int
    size_bytes: int
    used_bytes: int
    """Without the trailing NULs of a segment that was still mapped."""

    @property
    def rank(self) -> int | None:
        """Return the rank that the name says, None for a process that did not know its rank yet."""
        match = RANK_STEM.fullmatch(self.stem)
        return int(match[1]) if match else None


def discover(path: Path) -> tuple[LogFile, ...]:
    """Return the logs of a directory (or the one log that ``path`` is) in the order of their names.

    Raises ``DistdiagError`` when there is no such path, or no log in it.
    """
    if path.is_dir():
        found = sorted(path.glob("*.jsonl"))
        if not found:
            raise DistdiagError(f"no *.jsonl files in {path}", "pass the directory given to distdiag.install()")
    elif path.is_file():
        found = [path]
    else:
        raise DistdiagError(f"no such file or directory: {path}", "pass the directory given to distdiag.install()")
    return tuple(log for log in map(_describe, found) if log is not None)


def _describe(path: Path) -> LogFile | None:
    match = LOG_NAME.fullmatch(path.name) or re.fullmatch(r"(?P<stem>.*)(?P<attempt>)(?P<segment>)", path.name)
    if match is None or not path.is_file():
        return None
    size = path.stat().st_size
    return LogFile(
        path=path,
        stem=match["stem"],
        attempt=int(match["attempt"] or 0),
        segment=int(match["segment"] or 0),
        size_bytes=size,
        used_bytes=used_bytes(path, size),
    )


def used_bytes(path: Path, size: int) -> int:
    """Return the length of a log without its trailing NULs, reading only a few blocks of it."""
    with path.open("rb") as log:
        descriptor = log.fileno()
        tail = os.pread(descriptor, BLOCK_BYTES, max(0, size - BLOCK_BYTES))
        if not tail or tail[-1] or tail.rstrip(b"\0"):
            return max(0, size - BLOCK_BYTES) + len(tail.rstrip(b"\0"))
        used = _frontier(descriptor, size)
        step = max(1, (size - used) // PROBES)
        if any(_used_in(descriptor, offset) for offset in range(used + BLOCK_BYTES, size, step)):
            return _last_used(descriptor, size)
        return used


def _frontier(descriptor: int, size: int) -> int:
    # Segments are appended to, so blocks are used up to some block and empty from there on.
    low, high = 0, -(-size // BLOCK_BYTES)
    while low < high:
        middle = (low + high) // 2
        if _used_in(descriptor, middle * BLOCK_BYTES):
            low = middle + 1
        else:
            high = middle
    block = max(0, low - 1) * BLOCK_BYTES
    return block + _used_in(descriptor, block)


def _last_used(descriptor: int, size: int) -> int:
    for block in range(-(-size // BLOCK_BYTES) - 1, -1, -1):
        used = _used_in(descriptor, block * BLOCK_BYTES)
        if used:
            return block * BLOCK_BYTES + used
    return 0


def _used_in(descriptor: int, offset: int) -> int:
    return len(os.pread(descriptor, BLOCK_BYTES, offset).rstrip(b"\0"))
