"""The log that a process writes of itself: it survives whatever kills the process.

A record whose ``append`` returned is in the page cache, so SIGKILL, SIGABRT and ``os._exit`` lose nothing;
only the death of the node does. Reading such logs back: ``segments_of`` and ``read_lines``.
"""

import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from distdiag.errors import guard, logger
from distdiag.journal.retention import DETAILED_SEGMENTS, NO_SPACE, Losses, Retention
from distdiag.journal.segments import (
    Closed,
    Full,
    Log,
    Segment,
    Sink,
    beside,
    file_bytes,
    file_name,
    log_name,
    read_lines,
    reserve,
    segments_of,
)
from distdiag.journal.shipping import PATIENCE_SECONDS, Shipper, is_network_filesystem, local_directory, within_patience

__all__ = [
    "Journal",
    "Log",
    "is_network_filesystem",
    "local_directory",
    "log_name",
    "read_lines",
    "segments_of",
    "within_patience",
]

SEGMENTS_IN_CAP = 8
"""A cap smaller than so many segments makes the segments smaller: dropping one should not drop half the log."""
MIN_SEGMENT_BYTES = 4096
SPARE_FROM = 0.5
"""How full a segment is when the next one is prepared; short runs never need it."""
OVERDUE_SEGMENTS = 4
"""Segments above the cap at which the appending thread makes room itself, because nobody calls ``tick``."""
OVERDUE_PATIENCE_SECONDS = 0.2
"""How long it then waits for a ``tick`` that is at it, once; after that, records are dropped until it has ended."""


class Journal:
    """Append-only log of one process: memory-mapped segments that survive the death of the process.

    ``segment`` and ``path`` are the number and the file of the current segment; they change when it is full.
    ``attempt`` is the one that was asked for, or the next that was free: nothing is ever overwritten.
    ``shipped_from`` is the node-local directory when the log directory is on a network file system.
    The header is written with the first record of each segment, so ``header`` is not called before then.
    """

    def __init__(
        self,
        directory: Path,
        *,
        stem: str,
        attempt: int | None,
        header: Callable[[int], bytes],
        segment_bytes: int = 4 << 20,
        max_bytes: int = 256 << 20,
    ) -> None:
        self._header = header
        self._max_bytes = max_bytes
        self._segment_bytes = min(segment_bytes, max(max_bytes // SEGMENTS_IN_CAP, MIN_SEGMENT_BYTES))
        self._stem = stem
        self._asked_attempt = attempt or 0
        self._closed = False
        self._stalled = False
        self._map: Sink = Full()
        self._current: Segment | None = None
        self._spare: Segment | None = None
        self._retention = Retention(self._segment_bytes, max_bytes)
        self._losses = Losses()
        self._lock = threading.RLock()  # one that its own thread may enter: a signal handler or gc callback appends too
        self._busy = False
        self._acts: deque[Callable[[], None]] = deque()
        self._maintenance = threading.Lock()
        self._shipper: Shipper | None = None
        self.shipped_from: Path | None = None
        self._directory = Path(os.path.abspath(directory))  # the program may change its directory later
        if within_patience(partial(is_network_filesystem, self._directory), otherwise=True):
            self.shipped_from = local_directory(self._directory)
        if self.shipped_from:
            self._shipper = Shipper(self._directory)
            self._directory = self.shipped_from
        self._directory.mkdir(parents=True, exist_ok=True)
        self._stem, self.attempt = self._reserve(stem)
        self.segment = 0
        self.path = self._path_of(0)
        _journals.add(self)
        _watch_forks()

    def append(self, lines: bytes) -> None:
        """Append one or several whole lines; any thread may, and a signal handler or a gc callback.

        The write of a memory map is one step under the GIL: it copies the lines and moves on, or raises and
        does neither. So nothing can come between, and this path needs no lock.
        """
        try:
            self._map.write(lines)
        except ValueError:  # it is full, or was sealed by another thread just now
            if not self._closed:
                self._exclusively(partial(self._place, lines))

    def rename(self, stem: str) -> None:
        """Give the files another stem, when the rank becomes known; appending goes on."""
        if not self._closed and stem != self._stem:
            self._exclusively(partial(self._rename, stem))

    def tick(self) -> None:
        """Prepare the next segment, seal and condense old ones, ship; a background thread calls it every second."""
        with self._tidying(0) as mine, guard("tidy the journal"):
            if not mine or self._closed:
                return
            self._prepare_spare()
            self._reduce()
            if self._shipper:
                self._shipper.offer(self._retention.files_with(self._current))
        if self._losses:
            self._exclusively(self._tell_losses)

    def close(self) -> None:
        """Cut the files to their length and ship what is left; appending afterwards does nothing."""
        if not self._closed:
            self._exclusively(self._shut)
            if self._shipper:
                with guard("ship the end of the journal"):
                    self._ship_rest(self._shipper)

    def _exclusively(self, act: Callable[[], None]) -> None:
        """Run ``act`` with nobody else in here; if this very thread is, right after what it is doing."""
        self._acts.append(act)
        with self._lock:
            if self._busy:
                return
            while self._acts:
                self._busy = True
                try:
                    while self._acts:
                        with guard("write the journal"):
                            self._acts.popleft()()
                finally:
                    self._busy = False

    def _place(self, lines: bytes) -> None:
        reason = self._write(lines)
        if reason:
            self._losses.add(reason, lines)

    def _write(self, lines: bytes) -> str | None:
        """Write lines, into a new segment if need be; return None, or why it was not possible."""
        try:
            self._map.write(lines)  # another thread may have begun a segment meanwhile
        except ValueError:
            return self._begin_segment(lines)
        return None

    def _begin_segment(self, lines: bytes) -> str | None:
        """Begin a segment with its header and ``lines``; return None, or why it was not possible."""
        if self._stalled:
            return NO_SPACE
        number = self.segment + 1 if self._current else 0
        header = b""
        with guard("write a header"):
            header = self._header(number)
        size = max(self._segment_bytes, file_bytes(len(header) + len(lines)))
        if size > self._max_bytes:
            return "cap"
        try:
            self._make_room(size)
            segment = self._new_segment(number, size)
        except OSError:
            logger.debug("distdiag cannot begin segment %d of its log", number, exc_info=True)
            self._stalled = True  # until a tick could prepare one: every call would pay for trying
            return NO_SPACE
        segment.map.write(header + lines)
        if self._current:
            if self._current.tells_losses:
                self._tell_losses()
                self._losses.forget()
            self._retention.retired.append(self._current)
        # The map before the number: who sees the new number must not write into the old segment.
        self._current, self._map = segment, segment.map
        self.segment, self.path = number, segment.path
        return None

    def _tell_losses(self) -> None:
        """Write how much is lost: as usual lines, else where the present segment has room for just that."""
        if self._current is None or not self._current.tells_losses:
            self._losses.report(self._write)
        line = self._losses.line()
        if self._current is not None and line:
            self._current.tell_losses(line)

    def _make_room(self, size: int) -> None:
        """Condense here and now if ``tick`` is far behind, or wait a moment for it."""
        total = self._retention.total_bytes + self._live_bytes() + size
        if total > self._max_bytes and self._retention.detailed > DETAILED_SEGMENTS + OVERDUE_SEGMENTS:
            with self._tidying(OVERDUE_PATIENCE_SECONDS) as mine:
                if not mine:
                    raise OSError(errno.EDQUOT, "the log has come to its cap and cannot be condensed now")
                self._reduce()

    def _new_segment(self, number: int, size: int) -> Segment:
        path = self._path_of(number)
        segment = self._spare
        if segment is None or segment.size_bytes < size:
            segment = Segment(beside(path, "begun"), size, warm=number == 0)
        segment.become(number, path)
        if segment is self._spare:
            self._spare = None
        return segment

    def _rename(self, stem: str) -> None:
        with self._tidying(PATIENCE_SECONDS) as mine:
            if not mine or self._closed:
                return
            first = self._path_of(0)
            self._stem, self.attempt = self._reserve(stem)
            if self._current:
                self._retention.move(self._current, self._path_of)
            else:
                os.replace(first, self._path_of(0))
            self.path = self._path_of(self.segment)

    def _shut(self) -> None:
        if self._closed:
            return
        self._tell_losses()
        self._closed = True
        self._map = Closed()
        _journals.discard(self)
        with self._tidying(PATIENCE_SECONDS) as mine:
            if not mine:
                return
            if self._current:
                self._retention.retired.append(self._current)
                self._current = None
            if self._spare:
                self._spare.discard()
                self._spare = None
            self._reduce()

    @contextlib.contextmanager
    def _tidying(self, seconds: float) -> Iterator[bool]:
        """Hold the maintenance lock; yield False if another thread kept it for so long."""
        mine = self._maintenance.acquire(timeout=seconds)
        try:
            yield mine
        finally:
            if mine:
                self._maintenance.release()

    def _prepare_spare(self) -> None:
        current = self._current
        filling = current is not None and current.used_bytes > SPARE_FROM * current.size_bytes
        if self._spare is None and (filling or self._stalled):
            try:
                self._spare = Segment(beside(self._path_of(self.segment + 1), "spare"), self._segment_bytes, warm=True)
            except OSError:
                logger.debug("distdiag cannot prepare a segment of its log", exc_info=True)
                return
        if self._spare:
            self._stalled = False

    def _reduce(self) -> None:
        try:
            self._retention.reduce(self._live_bytes())
        except OSError:
            logger.debug("distdiag cannot condense its log", exc_info=True)

    def _ship_rest(self, shipper: Shipper) -> None:
        with self._tidying(PATIENCE_SECONDS) as mine:
            files = self._retention.files_with(self._current)
            if mine and shipper.finish(files):
                for file in files:
                    file.path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # other ranks' logs may still be there
                    self._directory.rmdir()

    def _reserve(self, stem: str) -> tuple[str, int]:
        taken = self._shipper.attempts(stem) if self._shipper else set()
        attempt = reserve(self._directory, stem, self._asked_attempt, taken)
        if self._shipper:
            self._shipper.rename(stem, attempt)
        return stem, attempt

    def _path_of(self, segment: int) -> Path:
        return self._directory / file_name(self._stem, self.attempt, segment)

    def _live_bytes(self) -> int:
        return sum(segment.size_bytes for segment in (self._current, self._spare) if segment)

    def _let_go(self) -> None:
        """Write no more and touch no file: this is a forked child, and the log is its parent's."""
        self._closed = True
        self._map = Closed()
        self._shipper = None
        for segment in (*self._retention.retired, self._current, self._spare):
            if segment:
                segment.let_go()


_journals: set[Journal] = set()


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_let_go_all)


def _let_go_all() -> None:
    for journal in _journals:
        with guard("leave the parent's journal alone"):
            journal._let_go()
    _journals.clear()
