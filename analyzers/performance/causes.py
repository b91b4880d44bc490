"""Which cause the simulations of a job point to: one slow worker, a heavy stage, uneven sequences, or something else.

The order matters. A slow worker makes its stage look slow too, and its two kinds of passes look as if they grew
together; so it is asked for first, and passes are only ever compared within one worker.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distdiag.analyzers.performance import job
from distdiag.analyzers.performance.job import BACKWARD, FORWARD, Job, Numbers
from distdiag.analyzers.performance.what_if import WhatIf, Worker

NOTHING_TO_EXPLAIN = 1.03
"""A slowdown below it is the jitter of a healthy job."""
STRAGGLING = 1.1
"""The published line between jobs that straggle and those that do not: from here on it is a warning."""
EXPLAINS = 0.5
"""A cause that explains half of the loss is the cause."""
SLOWER_THAN_PEERS = 1.1
"""A worker is accused only if it computes so much longer than the others of its stage do."""
HEAVIER_THAN_OTHERS = 1.05
GROW_TOGETHER = 0.95
"""Correlation of the forward and backward passes of a worker's microbatches: 0.99 was measured where sequences were
uneven, 0.71-0.92 in jobs where they were not."""
UNEVEN = 0.1
"""Spread of a worker's passes against their mean: 0.26-0.38 was measured where sequences were uneven, 0.02-0.03
elsewhere."""
ENOUGH_MICROBATCHES = 16
"""Of fewer pairs a correlation says nothing."""

COMPUTE_STRAGGLER, STAGE_IMBALANCE, TOKEN_IMBALANCE = "compute-straggler", "stage-imbalance", "token-imbalance"
GC_PAUSE, LAUNCH_DELAY, OTHER = "gc-pause", "launch-delay", "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowWorker:
    """A worker and what a microbatch takes it and the other workers of its stage, in seconds."""

    worker: Worker
    seconds: float
    peers_seconds: float
    peers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyStage:
    """A stage and what a microbatch takes it and the other stages, in seconds."""

    stage: int
    ranks: tuple[int, ...]
    seconds: float
    others_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How a worker's forward and backward passes go together: medians over the workers."""

    correlation: float
    variation: float
    """Standard deviation over mean."""

    @property
    def uneven(self) -> bool:
        """Return whether passes vary, and both kinds by the same amount, as they do with their sequences."""
        return self.correlation >= GROW_TOGETHER and self.variation >= UNEVEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """What explains that a step takes longer than it could."""

    slow_workers: tuple[SlowWorker, ...] = ()
    heavy_stage: HeavyStage | None = None
    passes: Passes | None = None
    uneven_sequences: bool = False
    word: str | None = None
    """The first cause in the order of this module; None where there is nothing to explain."""


_found: weakref.WeakKeyDictionary[WhatIf, Causes] = weakref.WeakKeyDictionary()
"""Several analyzers and the summary ask; the causes live as long as the simulations they are of."""


def causes_of(answer: WhatIf) -> Causes:
    """Return what explains the slowdown of a job."""
    if answer not in _found:
        _found[answer] = _causes_of(answer)
    return _found[answer]


def _causes_of(answer: WhatIf) -> Causes:
    passes = passes_of(answer.job, answer.work)
    if answer.slowdown < NOTHING_TO_EXPLAIN:
        return Causes(passes=passes)
    seconds = microbatch_seconds(answer.job, answer.work)
    slow = _slow_workers(answer, seconds)
    heavy = _heavy_stage(answer, seconds, {each.worker.stage for each in slow})
    uneven = passes is not None and passes.uneven
    words = {COMPUTE_STRAGGLER: bool(slow), STAGE_IMBALANCE: heavy is not None, TOKEN_IMBALANCE: uneven}
    named = next((word for word, found in words.items() if found), None)
    return Causes(
        slow_workers=slow,
        heavy_stage=heavy,
        passes=passes,
        uneven_sequences=uneven,
        word=named or _something_else(answer),
    )


def microbatch_seconds(of: Job, work: Numbers) -> Numbers:
    """Return the mean time of a forward and a backward pass together, [stages, D] seconds."""
    computing = of.nodes["op"].isin((FORWARD, BACKWARD)).to_numpy()
    sums = np.zeros(of.ranks.shape)
    counts = np.zeros(len(of.stages))
    np.add.at(sums, of.nodes["stage"].to_numpy()[computing], work[computing].mean(axis=2))
    np.add.at(counts, of.nodes["stage"].to_numpy()[(of.nodes["op"] == FORWARD).to_numpy()], 1)
    seconds: Numbers = sums / np.maximum(counts, 1)[:, None]
    return seconds


def passes_of(of: Job, work: Numbers) -> Passes | None:
    """Return how forward and backward passes of one microbatch go together; None where there are too few."""
    nodes = of.nodes.assign(node=np.arange(len(of.nodes)))
    forwards, backwards = (nodes[nodes["op"] == op] for op in (FORWARD, BACKWARD))
    numbered = (nodes.loc[nodes["op"].isin((FORWARD, BACKWARD)), "microbatch"] >= 0).all()
    keys = ["stage", "chunk", "microbatch"] if numbered else ["stage", "seq"]
    pairs = forwards.merge(backwards, on=keys, suffixes=("", "_back"))
    correlations: list[float] = []
    variations: list[float] = []
    for _, of_stage in pairs.groupby("stage"):
        forward, backward = work[of_stage["node"].to_numpy()], work[of_stage["node_back"].to_numpy()]
        for worker in range(len(of.dp)):
            there, back = forward[:, worker].ravel(), backward[:, worker].ravel()
            if len(there) < ENOUGH_MICROBATCHES or not there.std() or not back.std():
                continue
            correlations.append(float(np.corrcoef(there, back)[0, 1]))
            variations.append(float(there.std() / there.mean()))
    if not correlations:
        return None
    return Passes(correlation=float(np.median(correlations)), variation=float(np.median(variations)))


def _slow_workers(answer: WhatIf, seconds: Numbers) -> tuple[SlowWorker, ...]:
    """Return those of the slowest workers that compute longer than the others of their stage."""
    of = answer.job
    if not _explains(answer.fixed_workers.share) or len(of.dp) < 2:
        return ()
    slow = []
    for worker in answer.slowest:
        row, column = of.stages.index(worker.stage), of.dp.index(worker.dp)
        own, peers = float(seconds[row, column]), float(np.median(np.delete(seconds[row], column)))
        if own >= peers * SLOWER_THAN_PEERS:
            slow.append(SlowWorker(worker=worker, seconds=own, peers_seconds=peers, peers=len(of.dp) - 1))
    return tuple(slow)


def _heavy_stage(answer: WhatIf, seconds: Numbers, of_slow_workers: set[int]) -> HeavyStage | None:
    """Return the last stage, else the one that explains the most, if it explains enough and computes longer."""
    of = answer.job
    if len(of.stages) < 2:
        return None
    by_share = sorted(of.stages, key=lambda stage: -(answer.fixed_stages[stage].share or 0.0))
    for stage in (of.stages[-1], *by_share):
        row = of.stages.index(stage)
        own, others = float(seconds[row].mean()), float(np.delete(seconds, row, axis=0).mean())
        enough = _explains(answer.fixed_stages[stage].share) and own >= others * HEAVIER_THAN_OTHERS
        if enough and stage not in of_slow_workers:
            ranks = tuple(sorted(of.ranks[row].tolist()))
            return HeavyStage(stage=stage, ranks=ranks, seconds=own, others_seconds=others)
    return None


def _something_else(answer: WhatIf) -> str:
    fixed: Mapping[str, float | None] = {op: fix.share for op, fix in answer.fixed_types.items()}
    if _explains(fixed.get(job.GARBAGE)):
        return GC_PAUSE
    if answer.measured - answer.simulated > answer.simulated - answer.ideal:
        return LAUNCH_DELAY
    return OTHER


def _explains(share: float | None) -> bool:
    return share is not None and share >= EXPLAINS
