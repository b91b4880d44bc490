"""Which steps of a table of operations are whole: only those can be compared and simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from distdiag.deferred import deferred

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeSteps:
    """The steps in which every data-parallel rank measured the same operations, each once."""

    operations: pd.DataFrame
    left_out: tuple[int, ...]
    """Steps with gaps, or with other operations than most."""
    gap: str | None
    """The first operation that a step lacks, in words."""


def whole_steps(operations: pd.DataFrame) -> WholeSteps:
    """Return the steps that hold all operations that the usual step holds, on all data-parallel ranks.

    Operations are told apart by stage, kind and sequence number; none may stand there twice.
    """
    steps, step = np.unique(operations["step"].to_numpy(), return_inverse=True)
    nodes, node = _nodes(operations)
    ranks = operations["dp"].nunique()
    pairs, counts = np.unique(step.astype(np.int64) * len(nodes) + node, return_counts=True)
    of_step, of_node = np.divmod(pairs, max(len(nodes), 1))
    full = np.bincount(of_step, weights=counts != ranks, minlength=len(steps)) == 0
    shapes = np.zeros(len(steps), dtype=np.uint64)
    np.add.at(shapes, of_step, pd.util.hash_array(of_node))
    usual = _commonest(shapes[full]) if full.any() else None
    kept = full & (shapes == usual) if usual is not None else np.zeros(len(steps), dtype=bool)
    short = np.flatnonzero(counts != ranks)
    gap = None
    if len(short):
        first = short[0]
        stage, op, seq = (nodes[name].iloc[of_node[first]] for name in ("stage", "op", "seq"))
        gap = f"{op} {seq} of stage {stage} is there for {counts[first]} of {ranks} data-parallel ranks in step " + str(
            steps[of_step[first]]
        )
    whole = operations if kept.all() else operations[kept[step]].reset_index(drop=True)
    return WholeSteps(operations=whole, left_out=tuple(steps[~kept].tolist()), gap=gap)


def _nodes(operations: pd.DataFrame) -> tuple[pd.DataFrame, npt.NDArray[np.int64]]:
    """Return the kinds of operations there are, by stage, kind and number, and which one each row is."""
    keys = operations[["stage", "op", "seq"]]
    numbers: npt.NDArray[np.int64] = np.asarray(
        keys.groupby(["stage", "op", "seq"], observed=True).ngroup(), dtype=np.int64
    )
    first = pd.Series(numbers).drop_duplicates().sort_values()
    return keys.iloc[first.index], numbers


def _commonest(values: npt.NDArray[np.uint64]) -> np.uint64:
    found, first, counts = np.unique(values, return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))
    chosen: np.uint64 = found[order[0]]
    return chosen
