"""Follows the log files of a directory: each look reads only what was appended since the last."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from distdiag import events
from distdiag.journal.segments import file_name, place_of

FIRST_READ = 16 << 10
"""Bytes asked of a file at first: a second of a busy rank; where more came, the end is looked for."""
BLOCK_BYTES = 4096
SKIM_BYTES = 1 << 20
MOST_BYTES_PER_LOOK = 32 << 20
"""What is decoded at one look over all logs, a second or two of work; of what is older only the lines that later
ones lean on, and those that tell of steps and faults, are taken."""
LEAST_BYTES = 16 << 10
"""Decoded of each log at one look, however many there are."""

_LASTING = re.compile(
    rb'^\{"kind":"(?:header|group|path|signature|step|phase|fault|numerics|wrapper)".*\n', re.MULTILINE
)
_SHARED = (b'{"kind":"path"', b'{"kind":"signature"', b'{"kind":"group"')
"""Beginnings of lines that are the same on many ranks: what they say is then one record."""
MOST_SHARED = 20_000
_decoder: msgspec.json.Decoder[events.Record] = msgspec.json.Decoder(events.Record)


class Writer(NamedTuple):
    """Who writes a log: one process."""

    stem: str
    attempt: int


class Appended(NamedTuple):
    """What one process wrote since the last look."""

    writer: Writer
    records: list[events.Record]
    written_ns: int | None = None
    """When its newest file was last written, by the clock of its file system; told at the first look only."""


class Follower:
    """The logs of a directory, each read from where the last look ended; of each rank only the newest attempt.

    The directory may appear later and vanish: ``present`` says whether it was there at the last look. Files that
    cannot be read are named in ``unreadable``, lines that are no records counted in ``damaged``.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.present = False
        self.unreadable: tuple[str, ...] = ()
        self.damaged = 0
        self.wanted: Callable[[Writer, Path], bool] | None = None
        """Says of a log's process and newest file whether it is followed; None for all."""
        self._tails: dict[Writer, _Tail] = {}
        self._shared: dict[bytes, events.Record] = {}

    def look(self) -> Iterator[Appended]:
        """Yield what each process appended; processes without news are left out."""
        newest = self._newest()
        if self.wanted is not None:
            firsts = {writer: self.directory / file_name(*writer, segment) for writer, segment in newest.items()}
            newest = {w: segment for w, segment in newest.items() if self.wanted(w, firsts[w])}
        for writer in [writer for writer in self._tails if writer not in newest]:
            del self._tails[writer]
        budget = max(LEAST_BYTES, MOST_BYTES_PER_LOOK // max(len(newest), 1))
        unreadable = []
        for writer, segment in newest.items():
            tail = self._tails.get(writer)
            written_ns = None
            try:
                if tail is None:
                    tail = self._tails[writer] = _Tail(self.directory, writer, segment)
                    written_ns = (self.directory / file_name(*writer, segment)).stat().st_mtime_ns
                read = tail.read(segment, budget)
            except FileNotFoundError:
                continue  # renamed or condensed between the two looks at the directory
            except OSError as error:
                unreadable.append(f"{writer.stem}: {error.strerror}")
                continue
            if read:
                records = self._decoded(read)
                if records:
                    yield Appended(writer, records, written_ns)
        self.unreadable = tuple(unreadable)

    def _newest(self) -> dict[Writer, int]:
        """Return the newest attempt of each stem with its newest segment."""
        attempts: dict[str, tuple[int, int]] = {}
        try:
            names = os.listdir(self.directory)
        except OSError:
            self.present = False
            return {}
        self.present = True
        for name in names:
            place = place_of(name)
            if place is not None:
                stem, attempt, segment = place
                attempts[stem] = max(attempts.get(stem, (0, 0)), (attempt, segment))
        return {Writer(stem, attempt): segment for stem, (attempt, segment) in sorted(attempts.items())}

    def _decoded(self, lines: bytes) -> list[events.Record]:
        if any(mark in lines for mark in _SHARED):
            return list(self._one_by_one(lines))
        try:
            return _decoder.decode_lines(lines)
        except (msgspec.MsgspecError, ValueError):
            return list(self._one_by_one(lines))

    def _one_by_one(self, lines: bytes) -> Iterator[events.Record]:
        for line in lines.splitlines():
            record = self._shared.get(line)
            if record is None:
                try:
                    record = _decoder.decode(line)
                except (msgspec.MsgspecError, ValueError):
                    self.damaged += 1  # or of a kind that a newer version writes
                    continue
                if line.startswith(_SHARED) and len(self._shared) < MOST_SHARED:
                    self._shared[line] = record
            yield record


class _Tail:
    """Where reading stands in the files of one process."""

    def __init__(self, directory: Path, writer: Writer, segment: int) -> None:
        self._directory = directory
        self._writer = writer
        self._segment = segment
        self._offset = 0
        self._before: tuple[int, int] | None = None
        """The segment before, and how far it was read: another thread's line may still come there."""

    def read(self, newest: int, budget: int) -> bytes:
        """Return the lines that were appended; of more than ``budget`` bytes the newest, of the rest the lasting."""
        read: list[bytes] = []
        if self._before is not None:
            self._before = self._late(read, *self._before, budget)
        while True:
            try:
                lines, self._offset = appended(self._path(self._segment), self._offset, budget)
                read.append(lines)
            except FileNotFoundError:
                if self._segment >= newest:
                    raise
                # condensed away before it was read to its end
            if self._segment >= newest:
                return b"".join(read)
            self._before = self._segment, self._offset
            self._segment, self._offset = self._segment + 1, 0

    def _late(self, read: list[bytes], segment: int, offset: int, budget: int) -> tuple[int, int] | None:
        try:
            lines, end = appended(self._path(segment), offset, budget)
        except FileNotFoundError:
            return None
        read.append(lines)
        return (segment, end) if lines else None

    def _path(self, segment: int) -> Path:
        return self._directory / file_name(self._writer.stem, self._writer.attempt, segment)


def appended(path: Path, offset: int, budget: int) -> tuple[bytes, int]:
    """Return the whole lines of a file from ``offset`` to the first NUL, and where they end.

    Of more than ``budget`` bytes the older ones are only searched for lines that later ones lean on.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        data = os.pread(file, FIRST_READ, offset)
        skimmed = b""
        if len(data) == FIRST_READ and data[-1]:
            end = _frontier(file, offset + FIRST_READ)
            if end - offset > budget:
                skimmed, offset = _skimmed(file, offset, end - budget)
            data = os.pread(file, end - offset, offset)
    finally:
        os.close(file)
    nul = data.find(0)
    whole = data.rfind(b"\n", 0, nul if nul >= 0 else len(data)) + 1
    return skimmed + data[:whole], offset + whole


def _frontier(file: int, low: int) -> int:
    """Return where what was written ends: a file is appended to, so all before is written and all behind is not."""
    high = os.fstat(file).st_size
    if high > low and os.pread(file, 1, high - 1) not in (b"", b"\0"):
        return high  # cut to its length
    while high - low > BLOCK_BYTES:
        middle = (low + high) // 2
        if os.pread(file, 1, middle) in (b"", b"\0"):
            high = middle
        else:
            low = middle
    return high


def _skimmed(file: int, start: int, end: int) -> tuple[bytes, int]:
    """Return the lasting lines between two places, and the beginning of the first line that is not among them."""
    found: list[bytes] = []
    while start < end:
        data = os.pread(file, min(SKIM_BYTES, end - start), start)
        whole = data.rfind(b"\n") + 1
        if not whole:
            break
        found += _LASTING.findall(data, 0, whole)
        start += whole
    return b"".join(found), start
