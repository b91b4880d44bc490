"""One rank waits for its data longer than its peers, and all others wait for it.

What it means
    The rank's data loader gives its batches later than those of its peers: a slower file system, larger files,
    fewer or starved workers. In the next collective everybody waits for that rank.

How it is found
    As a compute-straggler is found; but the part of the step that is longer than the peers' is waiting for data.

What to do
    Look at the mount, the cache and the loader's workers of that rank's host, and at the files of its shard.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import seconds
from distdiag.analyzers.slowness.judged import INPUT, judge
from distdiag.analyzers.slowness.telling import confidence_of, evidence_of, gained, seen_of, waits
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD202"
NAME = "input-straggler"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per rank whose data comes later than its peers'."""
    for laggard in judge(run).late_by(INPUT):
        seen = seen_of(run, laggard)
        rank = laggard.rank
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=f"everyone waits {seconds(laggard.late_by_ns)} per step for rank {rank}, whose data loader takes "
            f"{seconds(laggard.parts_ns['data'])} longer for a batch than those of its peers\n"
            f"{waits(run, laggard).capitalize()}; {gained(laggard.gain_ns, laggard.step_ns)}.",
            culprits=(rank,),
            victims=laggard.peers,
            site=seen.site if seen is not None else None,
            cause="data",
            confidence=confidence_of(run, laggard),
            evidence=evidence_of(run, laggard),
            action=(
                f"look at what rank {rank} reads: its shard's files, and the file system and cache of its host",
                f"compare the loader's workers of rank {rank} with a peer's: their number, and whether they get cores",
            ),
        )
