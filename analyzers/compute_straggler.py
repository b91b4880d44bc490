"""A rank computes slower than its peers, step after step, and all others wait for it.

What it means
    Every collective waits for its last member, so one slow rank sets the pace of the whole job. Its peers spend the
    difference in communication, which makes their steps, and even their backwards, look as long as its own.

How it is found
    A rank's own time is its step without what calls held it up. It is compared with the median of the ranks that do
    the same work (of its pipeline stage): at least 10 % of the step and 5 ms longer, in at least 80 % of the steps
    after the warm-up, and the others have to wait for it; without it the step has to be at least 10 % shorter.
    Waiting for a processor is no own time, and where a rank waits for one longer than it is late, nothing is said.
    The part of the step that is longer is named; where data, collections, compilations, checkpoints or the lengths of
    its sequences explain it, the finding is another one.
    From tables of operations the steps are simulated again with the slowest workers at the usual pace. Where that
    takes away at least half of what is lost, and where the worker needs at least 1.1 times as long for a microbatch
    as the others of its pipeline stage, it is named. Where it is the only worker of its stage nobody is.
    From profiler traces of all ranks over at least three steps: the rank whose kernels compute at least 1.1 times as
    long as those of the ranks it shares its smallest group with, if it comes last in 80 % of the collectives of every
    step (its kernels of them are the shortest) and the others wait for it at least 5 % of the time.

What to do
    Look at the line the finding names. If all ranks run the same there, compare the machines: ``nvidia-smi -q -d
    PERFORMANCE,CLOCK`` on its host for throttling, ``top`` for other processes on its cores, and let the rank run on
    another host: if the slowness stays with the host, take it out.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import seconds
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.performance import accusations, traced
from distdiag.analyzers.slowness.judged import COMPUTE, judge
from distdiag.analyzers.slowness.laggards import Laggard
from distdiag.analyzers.slowness.telling import confidence_of, evidence_of, gained, seen_of, waits, where
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD201"
NAME = "compute-straggler"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per rank that is slower than its peers in nearly every step."""
    yield from accusations.slow_workers(run, CODE, NAME)
    yield from traced.slow_devices(run, CODE, NAME)
    for laggard in judge(run).late_by(COMPUTE):
        seen = seen_of(run, laggard)
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=f"{_pace(laggard)}\nIt loses them {where(laggard, seen)}; {waits(run, laggard)}, and "
            f"{gained(laggard.gain_ns, laggard.step_ns)}.",
            culprits=(laggard.rank,),
            victims=laggard.peers,
            site=seen.site if seen is not None else None,
            cause=laggard.part,
            confidence=confidence_of(run, laggard),
            evidence=evidence_of(run, laggard),
            action=_action(laggard, seen.site if seen is not None else None),
        )


def _pace(laggard: Laggard) -> str:
    times = f" ({laggard.own_ns / laggard.typical_ns:.1f}x)" if laggard.typical_ns > 0 else ""
    return (
        f"everyone waits {seconds(laggard.late_by_ns)} per step for rank {laggard.rank}, which takes "
        f"{seconds(laggard.own_ns)} of its own for a step, its peers {seconds(laggard.typical_ns)}{times}"
    )


def _action(laggard: Laggard, site: str | None) -> tuple[str, ...]:
    look = (f"look at {short(site)}: what does rank {laggard.rank} do there that its peers do not",) if site else ()
    return (
        *look,
        f"run rank {laggard.rank} on another host: if the slowness stays behind, it is the host (clocks, other "
        "processes on its cores)",
        f"if it moves along, profile rank {laggard.rank} beside a peer: py-spy record --pid, or the PyTorch profiler",
    )
