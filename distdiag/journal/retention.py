"""What stays of a log whose size has come to its cap."""

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from distdiag import events
from distdiag.journal.segments import LogFile, Segment, beside, read_lines

DETAILED_SEGMENTS = 2
"""Sealed segments that stay whole whatever the kept records take: the end of a run is what gets asked about."""
LOOKAHEAD_LINES = 64
"""First lines of the next segment that may lean on interned records written just before it began."""

NO_SPACE = "no-space"
"""Why a record is lost: the disk was full."""

_KIND_AT = len(b'{"kind":"')
_CALL = b'{"kind":"call","call":'
_CALL_AT = len(_CALL)
_DETAIL = (b'{"kind":"call"', b'{"kind":"done"')
"""Most lines; told first, because condensing shares the interpreter with the training."""
_KEPT = frozenset(events.kind_of(event).encode() for event in events.EVENTS if event.KEPT)
_INTERNED = frozenset({b"path", b"signature"})
_REFERENCE = re.compile(rb'"(path|signature)":(\d+)')
_TIME = re.compile(rb'"time_ns":\d+')

Reference = tuple[bytes, bytes]


class Tally:
    """Counts records that are lost."""

    def __init__(self) -> None:
        self.records = 0
        self._first = self._last = 0

    def add(self, line: bytes) -> None:
        """Count one line."""
        self.records += 1
        if line.startswith(_CALL):
            call = int(line[_CALL_AT : line.index(b",", _CALL_AT)])
            if call > self._last:
                self._last = call
            if call < self._first or not self._first:  # threads may write in another order than they count
                self._first = call

    def line(self, reason: str, segment: int | None = None) -> bytes:
        """Return the ``dropped`` record that says so."""
        calls = [self._first, self._last] if self._first else []
        return events.encode(
            events.Dropped(
                time_ns=time.monotonic_ns(), reason=reason, records=self.records, segment=segment, calls=calls
            )
        )


class Losses:
    """What could not be written, by reason: ``cap`` or ``no-space``."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}

    def __bool__(self) -> bool:
        return bool(self._tallies)

    def add(self, reason: str, lines: bytes) -> None:
        """Count lines."""
        tally = self._tallies.setdefault(reason, Tally())
        for line in lines.splitlines():
            tally.add(line)

    def line(self) -> bytes:
        """Return the ``dropped`` record of what found no space; nothing where there is no such loss."""
        tally = self._tallies.get(NO_SPACE)
        return tally.line(NO_SPACE) if tally else b""

    def forget(self) -> None:
        """Forget what found no space: it is told."""
        self._tallies.pop(NO_SPACE, None)

    def report(self, write: Callable[[bytes], str | None]) -> None:
        """Write the ``dropped`` records; what cannot be written is kept for later."""
        for reason, tally in list(self._tallies.items()):
            if write(tally.line(reason)) is None:
                del self._tallies[reason]


class _Remains:
    """Sorts the lines of one segment into what stays, what may be referred to, and what goes."""

    def __init__(self, known: frozenset[bytes], *, joins: bool) -> None:
        self._known = known
        self._joins = joins
        self._kept: dict[int, bytes] = {}
        self._interned: dict[Reference, tuple[int, bytes]] = {}
        self._wanted: set[Reference] = set()
        self._tally = Tally()
        self.once: set[bytes] = set()
        """Lines, without their times, that need not be written into the same file again."""

    def take(self, position: int, line: bytes) -> None:
        if line.startswith(_DETAIL):
            self._tally.add(line)
            return
        kind = line[_KIND_AT : line.find(b'"', _KIND_AT)]
        if kind in _INTERNED:
            match = _REFERENCE.search(line)
            if match:
                self._interned[match[1], match[2]] = (position, line)
        elif kind not in _KEPT:
            self._tally.add(line)
        elif kind == b"group":
            self._keep_once(position, line)
        elif not (kind == b"header" and self._joins and position == 0):  # its file begins with an older one
            self._kept[position] = line
            self.want(line)

    def want(self, line: bytes) -> None:
        self._wanted.update(_REFERENCE.findall(line))

    def _keep_once(self, position: int, line: bytes) -> None:
        key = _TIME.sub(b"", line)
        if key not in self._known and key not in self.once:
            self.once.add(key)
            self._kept[position] = line

    def result(self, segment: int) -> bytes:
        for reference in [reference for reference in self._wanted if reference[0] == b"signature"]:
            if reference in self._interned:
                self.want(self._interned[reference][1])
        for reference, (position, line) in self._interned.items():
            if reference in self._wanted:
                self._keep_once(position, line)
            else:
                self._tally.add(line)
        return b"".join(self._kept[position] for position in sorted(self._kept)) + self._tally.line("cap", segment)


class Retention:
    """The full segments of one log; condenses the oldest when the log exceeds its cap.

    Of a condensed segment stay the records of the kept kinds, the call sites they refer to, and a
    ``dropped`` record that closes them. Its remains replace the segment, or, while there is room, join the
    condensed file before it. Files are only ever replaced whole, so a reader finds the old or the new one;
    for a death between writing the remains and removing the segment see ``segments_of``.
    """

    def __init__(self, segment_bytes: int, max_bytes: int) -> None:
        self.retired: deque[Segment] = deque()
        """Segments that are full and not yet cut to their length."""
        self.files: list[LogFile] = []
        self._segment_bytes = segment_bytes
        self._max_bytes = max_bytes
        self._known: frozenset[bytes] = frozenset()

    @property
    def total_bytes(self) -> int:
        """Bytes that these files take."""
        return sum(file.size_bytes for file in self.files) + sum(segment.size_bytes for segment in list(self.retired))

    @property
    def detailed(self) -> int:
        """How many of these files hold every record."""
        return len(self.retired) + sum(not file.condensed for file in self.files)

    def files_with(self, current: Segment | None) -> list[LogFile]:
        """Return all files of the log, ``current`` being the one that is written to now."""
        live = (
            LogFile(number=segment.number, path=segment.path, size_bytes=segment.size_bytes)
            for segment in (*self.retired, current)
            if segment
        )
        # A segment can be current and retired, even sealed, at the moment when the next one begins.
        by_number = {file.number: file for file in (*live, *self.files)}
        return [by_number[number] for number in sorted(by_number)]

    def move(self, current: Segment, path_of: Callable[[int], Path]) -> None:
        """Give all files the paths of the log's new name."""
        files: list[LogFile | Segment] = [*self.files, *self.retired, current]
        for file in files:
            path = path_of(file.number)
            with contextlib.suppress(FileNotFoundError):  # removed by hand
                os.replace(file.path, path)
            file.path = path

    def reduce(self, live_bytes: int) -> None:
        """Cut full segments to their length, then condense the oldest until the log fits its cap.

        ``live_bytes`` is what the log takes beside these files.
        """
        while self.retired:
            segment = self.retired[0]
            self.files.append(LogFile(number=segment.number, path=segment.path, size_bytes=segment.seal()))
            self.retired.popleft()
        if self.total_bytes + live_bytes > self._max_bytes:
            self._forget_removed()
        while self.total_bytes + live_bytes > self._max_bytes:
            oldest = next((index for index, file in enumerate(self.files) if not file.condensed), len(self.files))
            if oldest + DETAILED_SEGMENTS >= len(self.files):
                return
            self._condense(oldest)

    def _forget_removed(self) -> None:
        """Leave alone what somebody removed by hand to make room."""
        there = [file for file in self.files if file.path.exists()]
        if len(there) < len(self.files):
            self.files = there
            self._known = frozenset()

    def _condense(self, index: int) -> None:
        file, following = self.files[index : index + 2]
        if index and self._join(self.files[index - 1], file, following):
            return
        data, self._known = _condense(file, following, known=frozenset(), joins=False)
        _replace(file.path, data)
        file.size_bytes = len(data)
        file.condensed = 1

    def _join(self, into: LogFile, file: LogFile, following: LogFile) -> bool:
        if into.size_bytes >= self._segment_bytes:
            return False
        data, known = _condense(file, following, known=self._known, joins=True)
        if into.size_bytes + len(data) > self._segment_bytes:
            return False
        _replace(into.path, into.path.read_bytes() + data)
        self._known = known
        into.size_bytes += len(data)
        into.condensed += 1
        self.files.remove(file)
        file.path.unlink(missing_ok=True)
        return True


def _condense(
    file: LogFile, following: LogFile, *, known: frozenset[bytes], joins: bool
) -> tuple[bytes, frozenset[bytes]]:
    remains = _Remains(known, joins=joins)
    for position, line in enumerate(read_lines(file.path)):
        remains.take(position, line)
    # The writer looks whether a signature stands in the segment, then appends: the call may land in the next one.
    for line in islice(read_lines(following.path), LOOKAHEAD_LINES):
        remains.want(line)
    data = remains.result(file.number)
    return data, known | remains.once


def _replace(path: Path, data: bytes) -> None:
    new = beside(path, "condensed")
    try:
        new.write_bytes(data)
        os.replace(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
