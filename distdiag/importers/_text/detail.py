"""What checks of c10d say: the fingerprints of ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, and monitored barriers."""

import re
from collections.abc import Iterator

from distdiag.importers._text.facts import Issued, Missed, Role, What
from distdiag.importers._text.kinds import Family, nothing
from distdiag.importers._text.names import DEFAULT_GROUP, dtype, operation
from distdiag.importers._text.normalise import Line

_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d+)(?: is running (?:inconsistent )?collective|\] Running collective): CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<seq>\d+),? ?)?OpType=(?P<op>\w+)"
    r"(?:, ?TensorShape=\[(?P<shape>[^\]]*)\])?(?:, ?TensorDtypes=(?P<dtype>\w+))?"
)
_MISSED = re.compile(
    r"(?:\[Rank (?P<by>\d+)\]:? )?Ranks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier"
    r"(?: in (?P<limit>\d+) ms)?"
)
_COUNTERS = 1 << 31
"""Some builds print uninitialised counters as sequence numbers."""


def running(line: Line) -> Iterator[What]:
    """Read what ranks say they were about to run."""
    mismatch = "Detected mismatch" in line.text
    for found in _FINGERPRINT.finditer(line.text):
        seq = int(found["seq"]) if found["seq"] else None
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


FAMILIES = (
    Family(
        name="collective-mismatch",
        needles=("Detected mismatch between collectives",),
        role=Role.INITIATING,
        parse=running,
        ending=r"Collectives differ in|but Rank \d+ is running collective: CollectiveFingerPrint\(.*OpType=\w+|$",
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
