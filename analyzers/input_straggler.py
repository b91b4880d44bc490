"""One rank waits for its data longer than its peers, and all others wait for it.

What it means
    The rank's data loader gives its batches later than those of its peers: a slower file system, larger files,
    fewer or starved workers. In the next collective everybody waits for that rank.

How it is found
    As a compute-straggler is found; but the part of the step that is longer than the peers' is waiting for data. So
    are loaders of which now this one is late and now that one: no rank is accused then.

What to do
    Look at the mount, the cache and the loader's workers of that rank's host, and at the files of its shard.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named, seconds, verb
from distdiag.analyzers.data_starvation import analyze as starved
from distdiag.analyzers.slowness.judged import INPUT, judge
from distdiag.analyzers.slowness.telling import (
    alike,
    confidence_of,
    everyone_waits,
    evidence_of,
    names_of,
    of_moving,
    seen_of,
    share_of,
    waits,
    without,
)
from distdiag.analyzers.step_time_change import beside_changes
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD202"
NAME = "input-straggler"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per rank whose data comes later than its peers'."""
    if not any(starved(run)):
        yield from of_moving(run, code=CODE, name=NAME, of_data=True)
    for laggards in alike(beside_changes(run, judge(run).late_by(INPUT))):
        laggard, (ranks, victims) = laggards[0], names_of(laggards)
        seen = seen_of(run, laggard)
        whose = "whose data loader takes" if len(ranks) == 1 else "whose data loaders take"
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=f"{everyone_waits(run, laggard, ranks)}, {whose} {seconds(laggard.parts_ns['data'])} "
            f"longer for a batch than those of {verb(ranks, 'its', 'their')} peers\n"
            f"{waits(run, laggards).capitalize()}; {without(laggard, ranks)}.",
            culprits=ranks,
            victims=victims,
            site=seen.site if seen is not None else None,
            cause="data",
            confidence=confidence_of(run, laggard),
            lost_share=share_of(laggard),
            evidence=evidence_of(run, laggards),
            action=(
                f"look at what {named(ranks)} {verb(ranks, 'reads', 'read')}: the files of the shard, and the file "
                "system and cache of the host",
                f"compare the loader's workers of rank {laggard.rank} with a peer's: their number, and whether they "
                "get cores",
            ),
        )
