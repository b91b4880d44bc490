"""Steps that wait for their slowest rank, now this one and now that one: work is uneven, and no rank slow by itself."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distdiag.analyzers.slowness.grid import Grid, Numbers
from distdiag.analyzers.slowness.laggards import LEAST_NS, MAIN_PART, OWN_PARTS, SLOWER_BY
from distdiag.analyzers.slowness.lengths import explained_by
from distdiag.analyzers.slowness.rhythm import rhythm_of

ENOUGH_STEPS = 20
OFTEN = 0.5
"""Share of steps that lose much to their slowest rank: else it is hiccups, if these have no rhythm."""
ENOUGH_LATE_STEPS = 8
"""With one, as of rollouts of which each is followed by some steps of training."""
LOST = 0.15
"""Of the job's time. Even work of 64 ranks that scatters by 5 % loses 12 %."""
IN_EACH_HALF = 0.1
"""Of the time of either half of the run: what warms up, or a burst of noise, does not last."""
QUEUED = 0.25
"""Of what is lost: where the slowest ranks wait so much for a processor, a busy machine is reason enough."""
COMPUTED = 0.8
"""Of what is lost, in forward and backward together, where no part of the step holds most of it: what is spread over
all of them is the noise of a machine."""
PAUSES = ("gc_ns", "compile_ns", "checkpoint_ns")
"""They have findings of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """What steps lose to their slowest ranks; durations are means over all steps, in nanoseconds."""

    lost_ns: float
    step_ns: float
    steps: int
    late_steps: int
    every: int
    """Once in so many steps they lose much, 1 in general."""
    slowest: tuple[tuple[int, int], ...]
    """Rank, and in how many steps it was the slowest, most first."""
    parts_ns: Mapping[str, float]
    """By how much each part of the slowest rank's step is longer than a typical one's."""
    explained: float | None
    """R squared of a fit by what was told of tokens or lengths, None where nothing was."""

    @property
    def part(self) -> str | None:
        """Return the part of the step in which ranks differ, None if it is spread over several."""
        part = max(self.parts_ns, key=lambda name: self.parts_ns[name])
        return part if self.parts_ns[part] >= MAIN_PART * self.lost_ns else None


def moving_in(grid: Grid) -> Moving | None:
    """Return what ranks of one role lose to the slowest of each step, None where that is little, or may be noise."""
    if len(grid.ranks) < 2 or len(grid.steps) < ENOUGH_STEPS:
        return None
    step_ns, paused = grid.step_ns, sum(np.nan_to_num(grid[name]) for name in PAUSES)
    own = np.maximum(grid["own_ns"] - paused, 0.0)
    last = own.argmax(axis=0)

    def excess(values: Numbers) -> Numbers:
        return np.asarray(values[last, np.arange(len(last))] - np.median(values, axis=0), dtype=float)

    lost = excess(own)
    late = lost >= np.maximum(LEAST_NS, SLOWER_BY * step_ns)
    halves = zip(np.array_split(lost, 2), np.array_split(step_ns, 2), strict=True)
    rhythm = rhythm_of(grid.steps[late].tolist()) if ENOUGH_LATE_STEPS <= late.sum() < OFTEN * len(late) else None
    every = 1 if rhythm is None else rhythm.every
    if (late.mean() < OFTEN and every == 1) or lost.sum() < LOST * step_ns.sum():
        return None
    if any(half.sum() < IN_EACH_HALF * whole.sum() for half, whole in halves):
        return None
    parts = {name: float(excess(grid[f"{name}_ns"]).mean()) for name in OWN_PARTS}
    computed = float(excess(grid["cpu_ns"]).mean())
    unknown = np.isnan(grid["queued_ns"]).all() and computed == computed
    if unknown and max(computed, parts["data"]) < MAIN_PART * lost.mean():
        return None
    if excess(np.nan_to_num(grid["queued_ns"])).sum() > QUEUED * lost.sum():
        return None
    rows, counts = np.unique(last, return_counts=True)
    slowest = [(grid.ranks[row], count) for row, count in zip(rows.tolist(), counts.tolist(), strict=True)]
    moving = Moving(
        lost_ns=float(lost.mean()),
        step_ns=float(step_ns.mean()),
        steps=len(step_ns),
        late_steps=int(late.sum()),
        every=every,
        slowest=tuple(sorted(slowest, key=lambda each: (-each[1], each[0]))),
        parts_ns=parts,
        explained=explained_by(grid),
    )
    computing = parts["forward"] + parts["backward"]
    return moving if moving.part is not None or computing >= COMPUTED * moving.lost_ns else None
