"""Reductions whose members combine by different operations: nothing fails, and each member gets another result."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers.investigation.issued import Issued, issued, settled_ns
from distdiag.analyzers.investigation.rows import records
from distdiag.run import Run

OPERATION_BITS = 8
"""There are ten kinds of reductions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionMismatch:
    """One reduction that its members asked for in different kinds."""

    key: str
    seq: int
    calls: Mapping[int, Issued]
    kinds: Mapping[int, str]
    """``SUM``, ``MAX`` and so on, by rank."""
    odd: tuple[int, ...]
    """Ranks outside the strict majority; empty where there is none."""

    @property
    def time_ns(self) -> int:
        """Return when all of it had been issued, or somebody had failed in it."""
        return settled_ns(self.calls.values())


def reduction_mismatches(run: Run, calls: pd.DataFrame) -> Iterator[ReductionMismatch]:
    """Yield per group the first reduction whose kinds differ, of calls that count."""
    kinds, names = pd.factorize(run.calls["reduce_op"])
    if len(names) < 2:
        return
    kinds = kinds[run.calls.index.get_indexer(calls.index)]
    candidates = calls[_of_several_kinds(calls["agree"].to_numpy(), kinds)]
    candidates = candidates.assign(reduction=run.calls.loc[candidates.index, "reduce_op"])
    candidates = candidates[candidates["reduction"].notna()]
    counts = candidates.groupby(["group_key", "seq"], observed=True)["reduction"].nunique()
    firsts = counts[counts > 1].reset_index().groupby("group_key", observed=True)["seq"].min()
    for key, seq in firsts.items():
        yield _mismatch(run, candidates[(candidates["group_key"] == key) & (candidates["seq"] == seq)])


def _of_several_kinds(agree: npt.NDArray[np.int64], kinds: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which calls agree in all else with calls of another kind: a million calls have few signatures."""
    distinct = np.asarray(pd.unique(pd.Series((agree << OPERATION_BITS) + kinds + 1))) >> OPERATION_BITS
    several, counts = np.unique(distinct, return_counts=True)
    return np.isin(agree, several[counts > 1])


def _mismatch(run: Run, rows: pd.DataFrame) -> ReductionMismatch:
    kinds = dict(zip(rows["rank"].astype(int).tolist(), rows["reduction"].astype(str).tolist(), strict=True))
    votes = pd.Series(list(kinds.values())).value_counts()
    majority = votes.index[0] if 2 * int(votes.iloc[0]) > len(kinds) else None
    odd = tuple(sorted(rank for rank, kind in kinds.items() if kind != majority)) if majority is not None else ()
    first = rows.iloc[0]
    of_all = run.calls.loc[rows.index]
    return ReductionMismatch(
        key=str(first["group_key"]),
        seq=int(first["seq"]),
        calls={int(row.rank): issued(run, row) for row in records(of_all)},
        kinds=kinds,
        odd=odd,
    )
