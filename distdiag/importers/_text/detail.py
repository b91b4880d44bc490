"""What c10d's debugging says: fingerprints of DETAIL mode, and who lags when a collective timed out.

The numbers of the latter count collectives from 1; its ranks are those of the group whose watchdog speaks.
"""

import re
from collections.abc import Iterable, Iterator

from distdiag.importers._text.facts import Issued, Missed, Remark, Role, What
from distdiag.importers._text.kinds import BlockFamily, Family, nothing
from distdiag.importers._text.names import DEFAULT_GROUP, dtype, operation
from distdiag.importers._text.normalise import Line
from distdiag.wording import named

_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d+)(?: is running (?:inconsistent )?collective|\] Running collective): ?CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<seq>\d+),? ?)?OpType=(?P<op>\w+)"
    r"(?:, ?TensorShape=\[(?P<shape>[^\]]*)\])?(?:, ?TensorDtypes=(?P<dtype>\w+))?"
)
_MISSED = re.compile(
    r"(?:\[Rank (?P<by>\d+)\]:? )?Ranks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier"
    r"(?: in (?P<limit>\d+) ms)?"
)
MISMATCH_LINES = 12
"""Two fingerprints fill so many lines of a terminal of 80 columns."""
_COUNTERS = 1 << 31
"""Some builds print uninitialised counters as sequence numbers."""
_APART = 10_000_000
"""Ranks that compare their fingerprints are not so many calls apart: at least one of the counters was never set."""
_ONE_SIDED = "is running inconsistent collective"


def running(line: Line) -> Iterator[What]:
    """Read what ranks say they were about to run."""
    mismatch = "Detected mismatch" in line.text
    found_all = list(_FINGERPRINT.finditer(line.text))
    counters = [int(found["seq"]) for found in found_all if found["seq"]]
    unset = bool(counters) and max(counters) - min(counters) > _APART
    if mismatch and len(found_all) == 2 and _differ_untold(*found_all):
        first, second = found_all
        op, other = operation(first["op"]), second["rank"]
        yield Remark(text=f"c10d found that {op} of rank {first['rank']} is not that of rank {other}", telling=True)
        return
    if mismatch and _ONE_SIDED in line.text and found_all:
        op, rank = operation(found_all[0]["op"]), found_all[0]["rank"]
        yield Remark(text=f"c10d found that {op} of rank {rank} is not what the others run", telling=True)
    for found in found_all:
        seq = int(found["seq"]) if found["seq"] and not unset else None
        sizes = (found["shape"] or "").replace(" ", "").split(",")
        yield Issued(
            op=operation(found["op"]),
            seq=seq + 1 if seq is not None and seq < _COUNTERS else None,  # this counter begins at 0
            rank=int(found["rank"]),
            group=DEFAULT_GROUP,
            shapes=(tuple(int(size) for size in sizes if size.isdecimal()),) if found["shape"] is not None else (),
            dtype=dtype(found["dtype"]) if found["dtype"] else None,
            failed=mismatch,
        )


def _differ_untold(first: re.Match[str], second: re.Match[str]) -> bool:
    """Return whether two fingerprints name one operation, and only one its tensors: what differs is not told."""
    return first["op"] == second["op"] and (first["shape"] is None) != (second["shape"] is None)


def barrier(line: Line) -> Iterator[What]:
    """Read who did not pass a monitored barrier."""
    found = _MISSED.search(line.text)
    if found:
        yield Missed(
            what="monitored_barrier",
            ranks=tuple(int(rank) for rank in found["ranks"].split(",")),
            by=int(found["by"] or 0),
            timeout_ms=int(found["limit"]) if found["limit"] else None,
        )


MAX_LINES = 200
_RANKS = r"\[(?P<ranks>\d+(?:, ?\d+)*)\]"
_NEVER = re.compile(rf"ranks {_RANKS} are the lagging ranks that caused this timeout")
_BEHIND = re.compile(rf"{_RANKS} finished collective #\d+, but didn't join collective #(?P<seq>\d+)")
_STUCK = re.compile(rf"{_RANKS} joined but didn't finish collective #(?P<seq>\d+)")
_STEP = re.compile(r"#(?P<seq>\d+) (?P<edge>started|finished) ranks:")
_STATE = re.compile(rf"{_RANKS} started (?P<op>\w+)")
_ANY = "collective"
"""What is missed where the report does not say: ranks that never joined anything."""


class _Report:
    """The lines of one report, which end with a snapshot of the ranks' latest states."""

    def __init__(self, line: Line) -> None:
        self._missed: tuple[tuple[int, ...], int] | None = None
        self._stuck: tuple[tuple[int, ...], int] | None = None
        self._ops: dict[int, str] = {}
        self._started = 0
        self._lines = 0
        self.feed(line)

    def feed(self, line: Line) -> bool:
        self._lines += 1
        text = line.text
        if found := _NEVER.search(text):
            self._missed = _ranks(found), 1
        elif found := _BEHIND.search(text):
            self._missed = _ranks(found), int(found["seq"])
        elif found := _STUCK.search(text):
            self._stuck = _ranks(found), int(found["seq"])
        elif found := _STEP.search(text):
            self._started = int(found["seq"]) if found["edge"] == "started" else 0
        elif self._started and (found := _STATE.search(text)):
            self._ops.setdefault(self._started, operation(found["op"]))
        return self._lines < MAX_LINES and "Traceback" not in text

    def close(self) -> Iterable[tuple[What, Role]]:
        if self._missed is not None:
            ranks, seq = self._missed
            yield Missed(what=self._ops.get(seq, _ANY), ranks=ranks, seq=seq), Role.INITIATING
        if self._stuck is not None:
            ranks, seq = self._stuck
            text = f"c10d says that {named(ranks)} began collective {seq} and did not end it"
            yield Remark(text=text, telling=self._missed is None), Role.UNKNOWN


def _ranks(found: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(rank) for rank in found["ranks"].split(","))


FAMILIES = (
    Family(
        name="collective-mismatch",
        needles=("Detected mismatch between collectives",),
        role=Role.INITIATING,
        parse=running,
        ending=r"Collectives differ in|but Rank \d+ is running collective: (?:CollectiveFingerPrint\(.*OpType=)?\w+"
        r"|inconsistent collective: \w+|…",
        lines=MISMATCH_LINES,
    ),
    Family(
        name="collective-fingerprint", needles=("Running collective: Collective",), role=Role.UNKNOWN, parse=running
    ),
    Family(
        name="monitored-barrier",
        needles=("failed to pass monitoredBarrier",),
        role=Role.INITIATING,
        parse=barrier,
    ),
    Family(
        name="monitored-barrier-reached",
        needles=("successfully reached monitoredBarrier",),
        role=Role.CASCADE,
        parse=nothing,
    ),
)


BLOCKS = (BlockFamily(name="c10d-desync", needles=("To our best knowledge",), open=_Report),)
