"""Pipeline stages: whose ranks do the same work, and which takes the longest, by the median own time of its ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distdiag.analyzers.performance.pipeline import layout
from distdiag.analyzers.slowness.grid import Grid, of_others
from distdiag.analyzers.slowness.laggards import ENOUGH_STEPS, LATE_STEPS, LEAST_NS, SLOWER_BY, WORTH
from distdiag.run import Run


def stages_of(run: Run) -> Mapping[int, int]:
    """Return the pipeline stage of each rank, all 0 where messages do not connect ranks in chains of one length."""
    found = layout(run)
    return dict.fromkeys(run.ranks, 0) if isinstance(found, str) else found.stage_of


def roles_of(run: Run) -> list[list[int]]:
    """Return the ranks of each role, in the order of stages; without a pipeline, all have one."""
    stages = stages_of(run)
    return [[rank for rank in sorted(stages) if stages[rank] == stage] for stage in sorted(set(stages.values()))]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyStage:
    """A stage that the others wait for in nearly every step; durations are medians over steps, in nanoseconds."""

    stage: int
    stages: int
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    own_ns: float
    typical_ns: float
    """Of the other stages."""
    late_steps: int
    steps: int
    step_ns: float
    gain_ns: float
    """By how much a step would be shorter if the stage had as much to do as the next longest."""

    @property
    def is_last(self) -> bool:
        """Return whether it is the last stage, which computes the loss."""
        return self.stage == self.stages - 1


def heavy_stage(roles: Sequence[Grid]) -> HeavyStage | None:
    """Return the stage that takes longer than the others, None where they are alike; ``roles`` are the stages."""
    if len(roles) < 2:
        return None
    common = sorted(set.intersection(*(set(grid.steps.tolist()) for grid in roles)))
    if len(common) < ENOUGH_STEPS:
        return None
    rows = [np.median(grid["own_ns"], axis=0)[np.isin(grid.steps, common)] for grid in roles]
    step_ns = np.median([grid.step_ns[np.isin(grid.steps, common)] for grid in roles], axis=0)
    own = np.stack(rows)
    excess = own - of_others(own)
    late = excess >= np.maximum(LEAST_NS, SLOWER_BY * step_ns)
    stage = int(np.median(excess, axis=1).argmax())
    if late[stage].mean() < LATE_STEPS:
        return None
    gain = np.maximum(0.0, own[stage] - np.delete(own, stage, axis=0).max(axis=0))
    if np.median(gain) < WORTH * np.median(step_ns):
        return None
    return HeavyStage(
        stage=stage,
        stages=len(roles),
        ranks=roles[stage].ranks,
        others=tuple(sorted(rank for grid in roles for rank in grid.ranks if grid is not roles[stage])),
        own_ns=float(np.median(own[stage])),
        typical_ns=float(np.median(of_others(own)[stage])),
        late_steps=int(late[stage].sum()),
        steps=len(common),
        step_ns=float(np.median(step_ns)),
        gain_ns=float(np.median(gain)),
    )
