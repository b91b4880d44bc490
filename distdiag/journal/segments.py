"""The files of a log: how they are named, mapped into memory and read back."""

import mmap
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from distdiag.events import Dropped

READ_BYTES = 1 << 20
LATE_BYTES = 1 << 16
"""What is looked at beyond the known end of a sealed segment for the lines of other threads."""
LAST_LINE_BYTES = 512
"""Longer than any ``dropped`` record."""
LOSS_BYTES = 256
"""The end of a file is kept for one line, which tells how much is lost where the disk is full."""
LOSSES_FROM_BYTES = 16 * LOSS_BYTES
"""Smaller files, of which there are many in a log with such, have no room to spare."""
ZEROS = bytes(1 << 16)
MOST_BUFFERS = 1024
"""The system takes no more in one call."""
NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL

_NAME = re.compile(r"(?P<stem>[^.].*?)(?:\.attempt(?P<attempt>\d+))?(?:\.(?P<segment>\d{4,}))?\.jsonl")
_RANK = re.compile(r"rank(\d+)")
_dropped: msgspec.json.Decoder[Dropped] = msgspec.json.Decoder(Dropped)


def log_name(rank: int | None) -> str:
    """Return the stem of a process's log files: by rank, or by host and process where the rank is not known."""
    if rank is None:
        return f"{socket.gethostname().split('.')[0] or 'host'}-{os.getpid()}"
    return f"rank{rank:05d}"


def file_name(stem: str, attempt: int, segment: int) -> str:
    """Return the name of one segment's file."""
    return stem + (f".attempt{attempt}" if attempt else "") + (f".{segment:04d}" if segment else "") + ".jsonl"


def place_of(name: str) -> tuple[str, int, int] | None:
    """Return stem, attempt and segment that the name of a log file tells; None for any other file."""
    match = _NAME.fullmatch(name)
    return (match["stem"], int(match["attempt"] or 0), int(match["segment"] or 0)) if match else None


def rank_of(stem: str) -> int | None:
    """Return the rank that a stem tells, if it tells one."""
    match = _RANK.fullmatch(stem)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The log of one process: its files in the order in which they were written."""

    stem: str
    attempt: int
    files: tuple[Path, ...]

    @property
    def rank(self) -> int | None:
        """The rank that the name tells, if it tells one."""
        return rank_of(self.stem)


def segments_of(directory: Path) -> list[Log]:
    """Return the logs of a directory, sorted by name and attempt.

    A file that ends in a ``dropped`` record with ``segment`` k holds what remains of all segments from
    its own number up to k. Should the process have died before it removed segment k itself, that file is
    still there; it is left out here, because its kept records would be read twice.
    """
    found: dict[tuple[str, int], dict[int, Path]] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and entry.is_file():
                numbered = found.setdefault((match["stem"], int(match["attempt"] or 0)), {})
                numbered[int(match["segment"] or 0)] = Path(entry.path)
    return [
        Log(stem=stem, attempt=attempt, files=_without_doubles(numbered))
        for (stem, attempt), numbered in sorted(found.items())
    ]


def _without_doubles(numbered: dict[int, Path]) -> tuple[Path, ...]:
    files: list[Path] = []
    condensed: int | None = -1
    for number in sorted(numbered):
        if condensed is not None:
            if number <= condensed:
                continue
            condensed = _condensed_through(numbered[number])  # condensed files come before all others
        files.append(numbered[number])
    return tuple(files)


def _condensed_through(path: Path) -> int | None:
    """Return the last segment whose remains stand in this file; None if it is as it was recorded."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LAST_LINE_BYTES))
        *_, line, rest = (b"\n" + file.read()).rsplit(b"\n", 2)
    if rest or not line.startswith(b'{"kind":"dropped"'):
        return None
    try:
        return _dropped.decode(line).segment
    except msgspec.MsgspecError:
        return None


def read_lines(path: Path) -> Iterator[bytes]:
    r"""Yield the complete lines of a log file, each with its ``\n``, up to the first NUL.

    No line holds a NUL, so one marks the end of what was written: the space reserved behind it, or a
    line whose writer died while it was copying.
    """
    carry = b""
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(READ_BYTES):
            written, nul, _ = chunk.partition(b"\0")
            lines = (carry + written).split(b"\n")
            carry = lines.pop()
            for line in lines:
                yield line + b"\n"
            if nul:
                return


def beside(path: Path, purpose: str) -> Path:
    """Return a hidden path beside ``path`` for a file in the making; what a dead process left there goes."""
    hidden = path.with_name(f".{path.name}.{purpose}")
    hidden.unlink(missing_ok=True)
    return hidden


def attempts_in(directory: Path, stem: str) -> set[int]:
    """Return the attempts of which a directory holds any file."""
    attempts = set()
    for name in os.listdir(directory):
        match = _NAME.fullmatch(name)
        if match and match["stem"] == stem:
            attempts.add(int(match["attempt"] or 0))
    return attempts


def reserve(directory: Path, stem: str, attempt: int, taken: set[int]) -> int:
    """Create the first, empty file of a log and return its attempt: the first free one from ``attempt`` on."""
    taken = taken | attempts_in(directory, stem)
    while True:
        if attempt not in taken:
            try:
                os.close(os.open(directory / file_name(stem, attempt, 0), NEW_FILE, 0o666))
            except FileExistsError:
                pass  # another process was faster
            else:
                return attempt
        attempt += 1


@dataclass(slots=True, kw_only=True)
class LogFile:
    """One file of a log that is being written."""

    number: int
    path: Path
    size_bytes: int
    condensed: int = 0
    """How many segments' remains it holds; 0 as long as it is as it was recorded."""


class Sink(Protocol):
    """Where lines go: a memory map, or one of its stand-ins."""

    def write(self, data: bytes, /) -> int:
        """Take all of ``data``, or raise ValueError and take none of it."""


class Full:
    """Takes nothing: no segment has begun."""

    def write(self, data: bytes, /) -> int:
        """Refuse."""
        raise ValueError("no segment yet")


class Closed:
    """Takes everything and keeps nothing: the log has ended, or this is a forked child."""

    def write(self, data: bytes, /) -> int:
        """Forget ``data``."""
        return len(data)


def file_bytes(content_bytes: int) -> int:
    """Return how large a file has to be for so many bytes of lines."""
    return content_bytes + _kept_for_losses(content_bytes + LOSS_BYTES)


def _kept_for_losses(file_bytes: int) -> int:
    return LOSS_BYTES if file_bytes >= LOSSES_FROM_BYTES else 0


class Segment:
    """A new file whose space is reserved on disk and mapped into memory.

    ``warm`` brings its pages into memory as well, which takes about a millisecond for 4 MiB: otherwise the first
    touch of each costs the writer some microseconds.
    """

    __slots__ = ("_fd", "_losses_at", "map", "number", "path", "size_bytes")

    def __init__(self, path: Path, size_bytes: int, *, warm: bool = False) -> None:
        self.number = -1
        self.path = path
        self.size_bytes = size_bytes
        self._losses_at = -1
        self._fd = os.open(path, NEW_FILE, 0o666)
        try:
            # A store into a hole of a full file system would be a SIGBUS; here it is an OSError.
            os.posix_fallocate(self._fd, 0, size_bytes)
            if warm:
                os.pwritev(self._fd, [ZEROS] * min(size_bytes // len(ZEROS), MOST_BUFFERS), 0)
            self.map = mmap.mmap(self._fd, size_bytes - _kept_for_losses(size_bytes))
        except OSError:
            os.close(self._fd)
            path.unlink(missing_ok=True)
            raise

    @property
    def used_bytes(self) -> int:
        """How much was written."""
        return self.size_bytes if self.map.closed else self.map.tell()

    def become(self, number: int, path: Path) -> None:
        """Take a place in the log."""
        os.replace(self.path, path)
        self.number, self.path = number, path

    @property
    def tells_losses(self) -> bool:
        """Return whether its last line, behind which nothing comes, tells what is lost."""
        return self._losses_at >= 0

    def tell_losses(self, line: bytes) -> None:
        """Write the last line, shorter than ``LOSS_BYTES``, or the same again with other numbers, if there is room.

        It begins where the map is not quite full and goes on behind it: who fills the map is the last to write there.
        """
        if not _kept_for_losses(self.size_bytes):
            return
        line = line.rstrip(b"\n").ljust(LOSS_BYTES - 1) + b"\n"
        while self._losses_at < 0:
            begin = self.map.tell()
            try:
                self.map.write(line[: len(self.map) - begin])
            except ValueError:
                continue  # another thread was faster
            self._losses_at = begin
        offset = self._losses_at // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        at = self._losses_at - offset
        with mmap.mmap(self._fd, self.size_bytes - offset, offset=offset) as end:
            end[at : at + len(line)] = line

    def seal(self) -> int:
        """End writing, cut the file to what was written and return its size."""
        used = self.map.tell()
        self.map.close()  # from here on a late writer is told to go elsewhere
        while True:
            late, nul, _ = os.pread(self._fd, LATE_BYTES, used).partition(b"\0")
            used += len(late)
            if nul or not late:
                break
        os.ftruncate(self._fd, used)
        self._close()
        return used

    def discard(self) -> None:
        """Remove a file that was never used."""
        self.let_go()
        self.path.unlink(missing_ok=True)

    def let_go(self) -> None:
        """Give up the mapping and leave the file as it is: in a forked child it is the parent's."""
        self.map.close()
        self._close()

    def _close(self) -> None:
        file, self._fd = self._fd, -1
        if file >= 0:
            os.close(file)
