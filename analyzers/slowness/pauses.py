"""What pauses of single ranks cost the job: garbage collections, compilations and checkpoints, step by step."""

from dataclasses import dataclass

import numpy as np

from distdiag.analyzers.slowness.grid import Grid, of_others

ENOUGH_STEPS = 10
ENOUGH_PAUSES = 3
"""Of one rank, beside the warm-up: one collection of a large heap, or one checkpoint, is no lasting cause."""
MATTERS = 0.05
"""Of the job's time: less is not worth a change."""
LEAST_PAUSE_NS = 5e6
ON_ALL = 0.5
"""Where so much of the lost time is lost on all ranks in the same steps, no rank is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Pauses of one kind that slow the whole job; durations in nanoseconds."""

    ranks: tuple[int, ...]
    """The ranks whose pauses the others waited for; empty where all pause together."""
    steps: int
    paused_steps: int
    longest_ns: float
    lost_ns: float
    """What they cost the job, summed over the steps."""
    total_ns: float
    """Length of all steps."""
    worst_step: int
    others_ns: float
    """What those that only wait pause themselves in the middle one of these steps; 0 where nobody does."""


def pauses_in(grid: Grid, column: str) -> Pauses | None:
    """Return what the pauses in a column of the ledger cost ranks of one role, None where that is little."""
    if len(grid.steps) < ENOUGH_STEPS:
        return None
    pauses = np.where(grid[column] >= LEAST_PAUSE_NS, grid[column], 0.0)
    total = float(grid.step_ns.sum())
    # On one rank the others wait for as much of a pause as makes it later than they are; together all lose it.
    apart = np.minimum(pauses, np.maximum(0.0, grid["own_ns"] - of_others(grid["own_ns"])))
    together = pauses.min(axis=0) if len(grid.ranks) > 1 else pauses[0]
    lost = np.maximum(apart.max(axis=0) if len(grid.ranks) > 1 else together, together)
    paused = int((lost > 0).sum())
    again = int((pauses > 0).sum(axis=1).max())
    if again < ENOUGH_PAUSES or lost.sum() < MATTERS * total:
        return None
    in_common = len(grid.ranks) < 2 or together.sum() >= ON_ALL * lost.sum()
    blamed = apart.sum(axis=1)
    guilty = blamed >= 0.5 * blamed.max()
    others = np.nan_to_num(grid[column])[~guilty][:, lost > 0]
    return Pauses(
        ranks=() if in_common else tuple(np.array(grid.ranks)[guilty].tolist()),
        steps=len(grid.steps),
        paused_steps=paused,
        longest_ns=float(pauses.max()),
        lost_ns=float(lost.sum()),
        total_ns=total,
        worst_step=int(grid.steps[lost.argmax()]),
        others_ns=float(np.median(others)) if others.size else 0.0,
    )
