"""How many tokens a router sends to the experts of each rank: the rows that its ``all_to_all`` calls bring."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from distdiag.analyzers.investigation.paths import location
from distdiag.analyzers.slowness.grid import Grid, Numbers
from distdiag.run import Run

TOLD = 0.8
"""Share of steps in which all ranks made such an exchange: one that is skipped is no reason to forget it."""
BACKWARD = "backward"
"""Gradients go the way that tokens came: they are no more tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What the calls of one line bring to the ranks of a grid."""

    op: str
    site: str
    """``file:line``."""
    rows: Numbers
    """[ranks, steps]; NaN where a rank made none in a step."""


def arrivals_in(run: Run, grid: Grid) -> Iterator[Arrivals]:
    """Yield what exchanges with sizes of their own bring to each rank; none of which many steps of ranks lack."""
    of_grid = (run.calls["phase"] != BACKWARD).to_numpy() & run.calls["rank"].isin(grid.ranks).to_numpy()
    calls = run.calls.loc[of_grid, ["op", "path", "rank", "step", "output_splits"]]
    calls = calls[calls["step"].isin(grid.steps) & calls["output_splits"].map(bool).astype(bool)]
    if calls.empty:
        return
    arrived = calls["output_splits"].map(sum).astype("float64")
    sums = arrived.groupby([calls["op"].astype(str), calls["path"], calls["rank"], calls["step"]]).sum()
    for key, rows in sums.groupby(level=[0, 1], sort=True):
        op, path = cast("tuple[str, int]", key)
        table = rows.droplevel([0, 1]).unstack().reindex(index=list(grid.ranks), columns=grid.steps.tolist())
        frames = run.paths.get(path, ())
        if frames and table.notna().all().mean() >= TOLD:
            yield Arrivals(op=op, site=location(frames[-1]), rows=np.asarray(table, dtype=float))
