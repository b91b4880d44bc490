"""What the slow findings share: the laggards, the imbalance and the pauses of a run, each told by its cause, once."""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.performance import Measured, measure
from distdiag.analyzers.slowness.grid import Grid, grid_of
from distdiag.analyzers.slowness.laggards import Laggard, laggards_in
from distdiag.analyzers.slowness.lengths import Imbalance, arrivals_in, imbalance_in
from distdiag.analyzers.slowness.moving import Moving, moving_in
from distdiag.analyzers.slowness.stages import roles_of
from distdiag.run import Run

COMPUTE, INPUT, CHECKPOINT, GARBAGE, COMPILE = "compute", "input", "checkpoint", "garbage", "compile"
PAUSED = 0.5
"""Of a laggard's lateness, for pauses of the interpreter to be its cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Where a run loses time between its ranks."""

    measured: Measured
    roles: tuple[Grid, ...]
    """The ranks of each role with a common step."""
    laggards: tuple[tuple[str, Laggard], ...]
    """Cause and laggard."""
    imbalances: tuple[Imbalance, ...]
    moving: tuple[Moving, ...]
    """Of roles that lose time to no rank in particular."""

    def late_by(self, cause: str) -> Iterator[Laggard]:
        """Yield the laggards of one cause."""
        return (laggard for why, laggard in self.laggards if why == cause)


_judged: weakref.WeakKeyDictionary[Run, Judged] = weakref.WeakKeyDictionary()


def judge(run: Run) -> Judged:
    """Return where a run loses time between its ranks; nothing where these logs cannot tell."""
    known = _judged.get(run)
    if known is None:
        known = _judged[run] = _judge(run)
    return known


def settled(run: Run) -> bool:
    """Return whether nothing stands still: only then are logs that are too long for memory gone through whole."""
    return not investigate(run).incidents


def _judge(run: Run) -> Judged:
    measured = measure(run, whole=settled(run))
    if measured.unknown or measured.ledger.empty:
        return Judged(measured=measured, roles=(), laggards=(), imbalances=(), moving=())
    grids = [grid_of(measured.ledger, set(role) & set(measured.ledger["rank"])) for role in roles_of(run)]
    roles = tuple(grid for grid in grids if grid is not None)
    imbalances = {grid.ranks: imbalance_in(grid, arrivals_in(run, grid)) for grid in roles}
    late = {grid.ranks: laggards_in(grid, measured) for grid in roles if imbalances[grid.ranks] is None}
    moving = [moving_in(grid) for grid in roles if late.get(grid.ranks) == []]
    return Judged(
        measured=measured,
        roles=roles,
        laggards=tuple((_cause(laggard), laggard) for each in late.values() for laggard in each),
        imbalances=tuple(each for each in imbalances.values() if each is not None),
        moving=tuple(each for each in moving if each is not None),
    )


def _cause(laggard: Laggard) -> str:
    if laggard.gc_ns >= PAUSED * laggard.late_by_ns:
        return GARBAGE
    if laggard.compile_ns >= PAUSED * laggard.late_by_ns:
        return COMPILE
    return {"data": INPUT, "checkpoint": CHECKPOINT}.get(laggard.part or "", COMPUTE)
