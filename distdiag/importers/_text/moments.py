"""When things were said, as far as the lines tell; what is not told keeps at least the order of the lines."""

import datetime
import os
from collections.abc import Sequence

from distdiag.importers._text.facts import Ended, Role, Waited
from distdiag.importers._text.owners import Told
from distdiag.importers._text.reader import Transcript
from distdiag.importers._text.times import SECOND_NS, Stamp

MILLISECOND_NS = 1_000_000
LONGEST_MS = 365 * 24 * 3600 * 1000
"""No job waits for a year; damaged numbers do."""
NO_CLOCK_NS = 1_000_000_000 * SECOND_NS
"""Beginning of time where no file tells any."""
QUARTER_NS = 900 * SECOND_NS
"""Zones differ by whole quarters of an hour."""
AT_ONCE_NS = 60 * SECOND_NS
"""A file whose last line is so far from its last change, whole quarters aside, was last changed by that line."""
FARTHEST_ZONE_NS = 14 * 3600 * SECOND_NS
BEFORE_NS = {Role.INITIATING: 2 * SECOND_NS, Role.UNKNOWN: SECOND_NS, Role.CASCADE: SECOND_NS, Role.TEARDOWN: 0}
"""Without clocks nothing tells the order between processes, but causes do come before what follows from them."""


def moments_of(told: Sequence[Told], transcripts: Sequence[Transcript]) -> list[int]:
    """Return the wall time of each thing said, in nanoseconds."""
    clocks = [_Clock(transcript) for transcript in transcripts]
    newest = max((clock.last_ns for clock in clocks if clock.last_ns is not None), default=NO_CLOCK_NS)
    moments = [_moment(each, clocks[each.said.file], newest) for each in told]
    return _without_borrowed(told, moments)


def _without_borrowed(told: Sequence[Told], moments: Sequence[int]) -> list[int]:
    """Move what has no moment of its own behind the waits that were printed before it, or that it is.

    Its moment is that of a line from before the wait, while nothing was printed. It is not moved beyond the next line
    of its file that has a moment.
    """
    ceilings: list[int | None] = []
    following: dict[int, int] = {}
    for each, moment in zip(reversed(told), reversed(moments), strict=True):
        ceilings.append(following.get(each.said.file))
        if not each.said.line.borrowed:
            following[each.said.file] = moment
    moved: list[int] = []
    floors: dict[int, int] = {}
    for each, moment, ceiling in zip(told, moments, reversed(ceilings), strict=True):
        later = moment
        if each.said.line.borrowed:
            later = max(moment + _waited_ns(each), floors.get(each.said.file, 0))
            later = later if ceiling is None else max(moment, min(later, ceiling - 1))
            floors[each.said.file] = later
        moved.append(later)
    return moved


def _waited_ns(told: Told) -> int:
    what = told.said.what
    return min(what.lasted_ms or 0, LONGEST_MS) * MILLISECOND_NS if isinstance(what, Waited) else 0


def ordinary_of(transcripts: Sequence[Transcript]) -> dict[int, int]:
    """Return by number of file the wall time of its last line that is not understood."""
    known = {number: _Clock(t).wall(t.ordinary) for number, t in enumerate(transcripts)}
    return {number: wall for number, wall in known.items() if wall is not None}


def _moment(told: Told, clock: "_Clock", newest: int) -> int:
    said = told.said
    stamp = said.what.stamp if isinstance(said.what, Ended) else None
    wall = clock.wall(stamp or said.line.stamp)
    if wall is None:
        wall = clock.first_ns  # it stands before the first line that has a moment
    return (newest - BEFORE_NS[said.role] if wall is None else wall) + said.line.number


def clockless(transcripts: Sequence[Transcript]) -> tuple[str, ...]:
    """Return the names of the files that tell no moment at all."""
    return tuple(t.path.name for t in transcripts if t.said and not any(said.line.stamp for said in t.said))


class _Clock:
    """The clock that a file's lines were stamped by."""

    def __init__(self, transcript: Transcript) -> None:
        changed_ns = os.stat(transcript.path).st_mtime_ns
        self._latest = datetime.datetime.fromtimestamp(changed_ns / SECOND_NS, datetime.UTC)
        self._shift = 0
        walls = [wall for said in transcript.said if (wall := self.wall(said.line.stamp)) is not None]
        if walls:
            self._shift = _zone(max(walls), changed_ns)
        self.first_ns = min(walls) + self._shift if walls else None
        self.last_ns = max(walls) + self._shift if walls else None

    def wall(self, stamp: Stamp | None) -> int | None:
        """Return the wall time of a stamp."""
        wall = stamp.wall_ns(self._latest) if stamp is not None else None
        return None if wall is None else wall + self._shift


def _zone(last_ns: int, changed_ns: int) -> int:
    """Return what to add to moments of an unknown zone, if the file's own time tells."""
    difference = changed_ns - last_ns
    zone = round(difference / QUARTER_NS) * QUARTER_NS
    return zone if abs(difference - zone) <= AT_ONCE_NS and abs(zone) <= FARTHEST_ZONE_NS else 0
