"""Pipeline stages compared with one another: own time of a step, as the median over the ranks of a stage."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distdiag.analyzers.slowness.grid import Grid, of_others
from distdiag.analyzers.slowness.laggards import ENOUGH_STEPS, LATE_STEPS, LEAST_NS, SLOWER_BY, WORTH


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
