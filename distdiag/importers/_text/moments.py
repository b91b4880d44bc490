"""When things were said, and by whose clocks, as far as lines tell; else at least the order of lines is kept."""

import datetime
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distdiag.importers._text.facts import Ended, Raised, Role, Torn, Waited
from distdiag.importers._text.filenames import ranks_of
from distdiag.importers._text.names import DEFAULT_GROUP
from distdiag.importers._text.owners import MAX_LOCAL_RANKS, Told, world_of
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


AGREED_NS = 2 * SECOND_NS
"""Ranks that wait in one collective came to it, and give it up, so far apart at most, where nothing went wrong."""
APART_NS = 10 * SECOND_NS
_OF_HOSTS = re.compile(r"host|node|worker|pod", re.IGNORECASE)
"""What files are called after that are of a host each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Whose clocks files and ranks go by: those of one name compare. What is not named goes by the first one's."""

    files: Mapping[int, str]
    """By number of file, ``""`` for the first."""
    ranks: Mapping[int, str]
    untimed: frozenset[int]
    """Ranks of whose words none bears a moment."""


@dataclass(slots=True)
class _Clocked:
    """What bears a moment in a file."""

    ends: dict[int, int] = field(default_factory=dict)
    """When ranks gave up collectives of the whole world, by their numbers."""
    errors: list[int] = field(default_factory=list)
    """When ranks failed of themselves."""

    def agrees(self, other: "_Clocked") -> bool:
        """Return whether clocks agree, by far better than errors are apart: ranks of both gave up at one moment."""
        common = self.ends.keys() & other.ends.keys()
        near = all(abs(self.ends[seq] - other.ends[seq]) < AGREED_NS for seq in common)
        return bool(common) and near and all(abs(a - b) > APART_NS for a in self.errors for b in other.errors)


def _clocked(told: Sequence[Told], moments: Sequence[int]) -> Mapping[int, _Clocked]:
    files: dict[int, _Clocked] = defaultdict(_Clocked)
    for moment, each in zip(moments, told, strict=True):
        what, file = each.said.what, files[each.said.file]
        if isinstance(what, Raised) and each.said.role is Role.INITIATING:
            file.errors.append(moment)
        elif isinstance(what, Waited) and what.seq is not None and what.group is not None:
            line = each.said.line
            if what.group.name == DEFAULT_GROUP and line.stamp is not None and not line.borrowed:
                file.ends.setdefault(what.seq, moment)
    return files


def clocks_of(told: Sequence[Told], transcripts: Sequence[Transcript], moments: Sequence[int]) -> Clocks:
    """Return the clocks of some files and of the ranks that speak in them.

    Files of one rank each, named after it, are of one host where that may have all ranks; of any others, each may be
    of another host, but for those in which the same ranks speak, and those whose clocks are seen to agree.
    """
    clocked = _clocked(told, moments)
    paths = [transcript.path for transcript in transcripts]
    speakers: dict[int, set[int]] = {}
    for each in sorted(told, key=lambda each: isinstance(each.said.what, Ended | Torn)):  # a launcher's words come last
        if each.rank is not None:
            speakers.setdefault(each.said.file, set()).add(each.rank)
    named = ranks_of(paths)
    together = (world_of(told) or 0) <= MAX_LOCAL_RANKS and not any(_OF_HOSTS.search(path.name) for path in paths)
    together &= all(len(ranks) == 1 and paths[file] in named for file, ranks in speakers.items())
    stamped = {number for number, each in enumerate(transcripts) if any(said.line.stamp for said in each.said)}
    files: dict[int, str] = {}
    of_rank: dict[int, str] = {}
    for file in [each for each in speakers if each in stamped and not together]:
        alone = f"file {file}" if files else ""
        alike = next((files[other] for other in files if clocked[other].agrees(clocked[file])), alone)
        files[file] = host = next((of_rank[rank] for rank in speakers[file] if rank in of_rank), alike)
        of_rank |= dict.fromkeys(speakers[file] - of_rank.keys(), host)
    untimed = {rank for file, ranks in speakers.items() if file not in stamped for rank in ranks}
    return Clocks(files=files, ranks=of_rank, untimed=frozenset(untimed - of_rank.keys()))
