"""A log left out records.

What it means
    A log has a size cap, and old calls make room for new ones; or the disk was full. Steps, faults and phases
    are kept for ever, the detail of old calls is not. What was dropped is unknown: its absence is no evidence.

How it is found
    The process wrote ``dropped`` records that say how many records are gone, of which calls and why.

What to do
    Nothing, if the end of the run is what you ask about. Else raise the cap: ``DISTDIAG_MAX_BYTES`` or
    ``install(max_bytes=...)``. If the disk was full, free space or record elsewhere.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, named
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

CODE = "DD103"
NAME = "records-dropped"
NO_SPACE = "no-space"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for records that made room, and one for records that found no space."""
    dropped = run.dropped
    capped = dropped[dropped["reason"] != NO_SPACE]
    if len(capped):
        records = counted(int(capped["records"].sum()), "old record")
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.INFO,
            summary=f"{records} of {named(capped['rank'])} made room for newer ones",
            confidence=Confidence.HIGH,
            evidence=("steps, phases and faults are kept; the detail of the oldest calls is gone",),
            action=("raise DISTDIAG_MAX_BYTES if you need the calls of the whole run",),
        )
    lost = dropped[dropped["reason"] == NO_SPACE]
    if len(lost):
        records = counted(int(lost["records"].sum()), "record")
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=f"{records} of {named(lost['rank'])} found no space on the disk and are lost",
            confidence=Confidence.HIGH,
            evidence=tuple(
                f"rank {rank}: {counted(int(count), 'record')}"
                for rank, count in lost.groupby("rank")["records"].sum().items()
            ),
            action=("free space on the disk that holds the logs, or set DISTDIAG_DIR to another one",),
        )
