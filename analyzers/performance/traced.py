"""Findings from profiler traces: only where all ranks of the job were traced over several steps.

A trace covers a few steps, and a rank that is not traced may be the one that all others wait for; what these rules
do not accuse is still in the report's table.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from distdiag.analyzers._wording import counted, named, seconds
from distdiag.analyzers.performance.profiles import APART_NS, Waits, waits_in, waits_of
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

ENOUGH_STEPS = 3
"""Of fewer steps one hiccup is all there is."""
MANY_STEPS = 5
LAST_AGAIN = 0.8
"""Share of the collectives, and in each step, in which a straggler comes last."""
WAITED_FOR = 0.05
"""Of the window: others that wait less for a rank do not mind."""
SLOWER = 1.1
"""Computing that takes less than so many times as long as the others' is within what equal devices differ by."""
DOMINATES = 0.4
"""Of the window, for exposed transfers to be what a step is made of."""


def slow_devices(run: Run, code: str, name: str) -> Iterator[Finding]:
    """Yield a finding for the rank that computes longest, if the others wait for it in every step."""
    rows = _whole_job(run)
    if rows is None or len(rows) < 2:
        return
    waits = waits_in(run)
    worst = max(waits, key=lambda rank: (waits[rank].caused_ns, -rank), default=None)
    if worst is None or waits[worst].ranks != tuple(rows.index) or not _always_last(run.collectives, worst):
        return
    steps = _steps(rows)
    compute = dict(zip(rows.index.tolist(), rows["compute_ns"].tolist(), strict=True))
    peers = _peers(run.collectives, worst)
    own, others = compute[worst], float(np.median([compute[rank] for rank in peers]))
    caused = waits[worst].caused_ns
    if steps < ENOUGH_STEPS or own < SLOWER * others or caused < WAITED_FOR * float(rows["window_ns"].median()):
        return
    victims = tuple(rank for rank in rows.index.tolist() if rank != worst)
    yield Finding(
        code=code,
        name=name,
        severity=Severity.WARNING,
        summary=f"rank {worst} computes {own / others:.2f}x as long as its peers: {seconds(own / steps)} of kernels a "
        f"step, theirs take {seconds(others / steps)}; {named(victims)} wait {seconds(caused / steps)} a step for it",
        culprits=(worst,),
        victims=victims,
        confidence=Confidence.MEDIUM,
        evidence=(
            _came_last(worst, waits[worst]),
            "a trace does not tell a slower device from more work for it",
            _traced(rows),
        ),
        action=(
            f"run nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE on the host of rank {worst}",
            f"compare the kernels of rank {worst} with another's: --format json has the longest of each; more calls of "
            "a kernel mean more work, longer ones a slower device",
        ),
    )


def exposed_transfers(run: Run, code: str, name: str) -> Iterator[Finding]:
    """Yield a finding where a step is mostly transfers that nothing runs beside, waiting for others left out."""
    rows = _whole_job(run)
    if rows is None or _steps(rows) < MANY_STEPS:
        return
    waits = waits_in(run)
    if sorted(waits) != rows.index.tolist():
        return
    waited = np.array([waits[rank].waited_ns for rank in rows.index.tolist()])
    share = float(np.median((rows["exposed_ns"].to_numpy() - waited) / rows["window_ns"].to_numpy()))
    computing = float((rows["compute_ns"] / rows["window_ns"]).median())
    if share < DOMINATES or share < computing:
        return
    yield Finding(
        code=code,
        name=name,
        severity=Severity.WARNING,
        summary=f"{share:.0%} of a step is communication that no computing hides, computing takes {computing:.0%}: "
        "the job is bound by its network, not by a slow rank",
        confidence=Confidence.HIGH,
        evidence=(
            "medians over ranks; what ranks wait for one another is left out: "
            f"{float(np.median(waited / rows['window_ns'].to_numpy())):.0%} of a step",
            _traced(rows),
        ),
        action=(
            "overlap: larger DDP buckets or FSDP prefetch let transfers run beside the backward pass",
            "or send less: gradient accumulation with no_sync, bf16 gradients, sharding within a host",
            "check the links too: nvidia-smi topo -m, and the bus bandwidth that nccl-tests measures",
        ),
    )


def incomparable(run: Run) -> str | None:
    """Return why no rank's trace can be compared with the others', None where they can be or there is one rank."""
    if run.world_size == 1:
        return None
    if run.world_size is None:
        return "nothing tells how many ranks the job has: none of them is compared with the others"
    if _whole_job(run) is not None:
        steps = _steps(run.profiles)
        few = f"{counted(steps, 'whole step')} in the traces, of which {ENOUGH_STEPS} are compared"
        return few if steps < ENOUGH_STEPS else _far_apart(run)
    traced = len(set(run.profiles["rank"].tolist()))
    if traced < run.world_size:
        return f"{traced} of {run.world_size} ranks were traced: one that was not may be what the others wait for"
    return "the traces are not of the same steps, or there are several of a rank: ranks are not compared"


def _far_apart(run: Run) -> str | None:
    """Return that traces are of different times, or of clocks that differ as much; None where they are not."""
    begun = run.collectives.groupby("rank")["start_ns"].min()
    apart_ns = int(begun.max() - begun.min()) if len(begun) else 0
    if apart_ns < APART_NS or waits_in(run):
        return None
    return (
        f"by the clocks of their hosts the traces begin {seconds(apart_ns)} apart: ranks are not compared, as nothing "
        "tells whether these are the same steps"
    )


def _whole_job(run: Run) -> pd.DataFrame | None:
    """Return the profiles by rank, if each rank of the job has exactly one, of the same steps."""
    rows = run.profiles
    if rows.empty or run.world_size is None or rows["rank"].tolist() != list(range(run.world_size)):
        return None
    if rows["steps"].nunique() != 1 or not rows["window_ns"].all():
        return None
    return rows.set_index("rank")


def _steps(rows: pd.DataFrame) -> int:
    return len(rows["steps"].iloc[0])


def _always_last(collectives: pd.DataFrame, rank: int) -> bool:
    """Return whether a rank came last in nearly all collectives of every step."""
    for _, of_step in collectives.groupby("step"):
        waits = waits_of(of_step).get(rank)
        if waits is None or waits.came_last < LAST_AGAIN * waits.collectives:
            return False
    return True


def _peers(collectives: pd.DataFrame, rank: int) -> list[int]:
    """Return the other members of a rank's smallest group: ranks of other pipeline stages have other work."""
    groups = [set(rows["rank"].tolist()) for _, rows in collectives.groupby("group")]
    smallest = min((group for group in groups if rank in group and len(group) > 1), key=len)
    return sorted(smallest - {rank})


def _came_last(rank: int, waits: Waits) -> str:
    return (
        f"rank {rank} came last in {waits.came_last} of {counted(waits.collectives, 'collective')}: "
        "its kernels of them are the shortest"
    )


def _traced(rows: pd.DataFrame) -> str:
    steps = rows["steps"].iloc[0]
    return f"profiler traces of all {len(rows)} ranks, steps {steps[0]}-{steps[-1]}"
