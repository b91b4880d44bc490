"""How much of the logs is read: all of it, or the newest part of each rank where that is too much."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distdiag import events
from distdiag.engine import Engine
from distdiag.engine.packs import LEANED_ON, newest_of
from distdiag.run.launch import Process
from distdiag.run.logfiles import LogFile

WHOLE_BYTES = 320 << 20
"""Logs up to this size are read whole, in about two seconds; longer ones from their ends, and never more of them."""
SHARED_BYTES = 128 << 20
"""Of longer ones so much is shared out between the ranks: how long a run went on before does not matter to a verdict,
and whole logs are gone through where nothing stands still."""
ENOUGH_BYTES = 256 << 10
"""Of each rank at least, as long as that is not more than is read of whole logs: about 1,000 calls with their ends."""
LEAST_BYTES = 64 << 10
"""Read of every rank however many there are: about 250 calls with their ends."""
HEAD_BYTES = 64 << 10
"""Beginning of a segment that is cut: its header, groups and most of its interned records stand there."""
UNUSED_BYTES = 64 << 10
"""A longer tail of NULs is cut off rather than read over and over."""
_LEANED_ON = tuple(f'{{"kind":"{events.kind_of(kind)}"'.encode() for kind in LEANED_ON)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file to read for a rank, and the log that it is a part of."""

    rank: int
    log: LogFile
    path: Path
    """The log itself, a copy of a part of it, or what stands for the newest part of a packed one."""
    cut: bool
    """Whether the copy lacks something from the middle of the log."""

    @property
    def damaged_end(self) -> bool:
        """Return whether the file ends in something that is no line: NULs, or a torn line."""
        return self.path == self.log.path and self.log.size_bytes > self.log.used_bytes


def window_bytes(members: Mapping[int, Process]) -> int | None:
    """Return how many of its newest bytes are read of each rank, None for all."""
    total = sum(log.used_bytes for process in members.values() for log in process.files)
    return window_of(total, len(members))


def window_of(total_bytes: int, ranks: int) -> int | None:
    """Return how many of its newest bytes are read of each rank of a run whose logs are so long, None for all."""
    if total_bytes <= WHOLE_BYTES:
        return None
    return max(LEAST_BYTES, min(max(SHARED_BYTES // ranks, ENOUGH_BYTES), WHOLE_BYTES // ranks))


def parts_of(members: Mapping[int, Process], window: int | None, engine: Engine) -> tuple[Part, ...]:
    """Return what is to be read, ranks and segments in order."""
    return tuple(part for rank, process in members.items() for part in _parts_of(rank, process.files, window, engine))


def starts_of(files: Sequence[LogFile], window: int | None) -> Iterator[tuple[LogFile, int]]:
    """Yield the files of a rank that are read, the newest first, and from which byte on."""
    left = window
    for log in reversed(files):
        if left is not None and left <= 0:
            break
        yield log, 0 if left is None else max(0, log.used_bytes - left)
        if left is not None:
            left -= log.used_bytes


def _parts_of(rank: int, files: Sequence[LogFile], window: int | None, engine: Engine) -> list[Part]:
    return [_part(rank, log, start, engine) for log, start in starts_of(files, window)][::-1]


def _part(rank: int, log: LogFile, start: int, engine: Engine) -> Part:
    if log.held is not None:
        return Part(rank=rank, log=log, path=log.path, cut=False)
    if log.packed is not None:
        cut = start > HEAD_BYTES
        return Part(rank=rank, log=log, path=newest_of(log.path) if cut else log.path, cut=cut)
    if start <= HEAD_BYTES and log.size_bytes - log.used_bytes < UNUSED_BYTES:
        return Part(rank=rank, log=log, path=log.path, cut=False)
    with log.path.open("rb") as file:
        if start <= HEAD_BYTES:
            data = file.read(log.used_bytes)
            return Part(rank=rank, log=log, path=engine.spool(log.path.name, data), cut=False)
        head = file.read(HEAD_BYTES)
        file.seek(start)
        tail = file.read(log.used_bytes - start)
    return Part(rank=rank, log=log, path=engine.spool(log.path.name, newest_part(head, tail)), cut=True)


def newest_part(head: bytes, tail: bytes) -> bytes:
    """Return what is read of a file, given its beginning and its end: whole lines, of the beginning no detail."""
    return _without_detail(head[: head.rfind(b"\n") + 1]) + tail[tail.find(b"\n") + 1 :]


def _without_detail(head: bytes) -> bytes:
    """Return the lines that later ones lean on: calls from before a gap would look like calls that were left out."""
    return b"".join(line for line in head.splitlines(keepends=True) if line.startswith(_LEANED_ON))
