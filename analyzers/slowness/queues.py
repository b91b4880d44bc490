"""Ranks that wait for a processor in nearly every step, and their peers for them: the reason, and nobody's fault."""

from dataclasses import dataclass

import numpy as np

from distdiag.analyzers.slowness.grid import Grid, of_others

ENOUGH_STEPS = 10
PERSISTENT = 0.8
"""Share of the steps."""
LONG_SHARE = 0.3
"""Of the step, spent in the queue beyond what the others spend there, and by the others waiting."""
LEAST_NS = 10e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A rank that waits for a processor; durations are medians over steps, in nanoseconds."""

    rank: int
    peers: tuple[int, ...]
    queued_ns: float
    of_others_ns: float
    waited_ns: float
    """What the others wait in a step."""
    step_ns: float
    steps: int


def queued_in(grid: Grid) -> Queued | None:
    """Return the rank of a role that others wait for while it waits for a processor, None where there is none."""
    if len(grid.ranks) < 2 or len(grid.steps) < ENOUGH_STEPS:
        return None
    queued, waited = np.nan_to_num(grid["queued_ns"]), of_others(grid["waiting_ns"])
    longer = queued - of_others(queued)
    least = np.maximum(LEAST_NS, LONG_SHARE * grid.step_ns)
    often = ((longer >= least) & (waited >= least)).mean(axis=1)
    row = int(often.argmax())
    if often[row] < PERSISTENT:
        return None
    rank = grid.ranks[row]
    return Queued(
        rank=rank,
        peers=tuple(other for other in grid.ranks if other != rank),
        queued_ns=float(np.median(queued[row])),
        of_others_ns=float(np.median(of_others(queued)[row])),
        waited_ns=float(np.median(waited[row])),
        step_ns=float(np.median(grid.step_ns)),
        steps=len(grid.steps),
    )
