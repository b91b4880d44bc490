"""The ledger of some ranks as arrays of rank by step, which comparisons between ranks work on."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Numbers = npt.NDArray[np.float64]
Chosen = npt.NDArray[np.bool_]
FEW_RANKS = 16
"""So many are each compared with the others alone; among more, one rank does not move the median."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Columns of the ledger, [ranks, steps], of the steps that all these ranks made."""

    ranks: tuple[int, ...]
    steps: npt.NDArray[np.int64]
    values: Mapping[str, Numbers]

    def __getitem__(self, name: str) -> Numbers:
        return self.values[name]

    def at(self, chosen: Chosen) -> "Grid":
        """Return the grid of some of the steps, [steps]."""
        values = {name: each[:, chosen] for name, each in self.values.items()}
        return Grid(ranks=self.ranks, steps=self.steps[chosen], values=values)

    @property
    def step_ns(self) -> Numbers:
        """Return the length of each step, [steps]: the median over ranks."""
        return np.asarray(np.median(self["step_ns"], axis=0), dtype=float)


def grid_of(ledger: pd.DataFrame, ranks: Collection[int]) -> Grid | None:
    """Return the common steps of some ranks, None where they have none."""
    chosen = sorted(ranks)
    rows = ledger[ledger["rank"].isin(chosen)]
    made = rows.groupby("step")["rank"].nunique()
    common = made[made == len(chosen)].index
    rows = rows[rows["step"].isin(common)].sort_values(["rank", "step"])
    if not chosen or rows.empty:
        return None
    shape = len(chosen), len(common)
    names = [name for name in rows.columns if name not in ("rank", "step")]
    values = {name: rows[name].to_numpy(dtype=float).reshape(shape) for name in names}
    return Grid(ranks=tuple(chosen), steps=np.sort(common.to_numpy(dtype=np.int64)), values=values)


def of_others(values: Numbers) -> Numbers:
    """Return for each rank and step what is typical of the other ranks: their median."""
    if len(values) < 2:
        return values
    if len(values) > FEW_RANKS:
        return np.broadcast_to(np.median(values, axis=0), values.shape)
    return np.stack([np.median(np.delete(values, row, axis=0), axis=0) for row in range(len(values))])
