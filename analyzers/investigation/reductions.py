"""Reductions by kind: sums, maxima and so on. Nothing fails where members combine by different ones.

A recorder does not read the kind of every reduction (``distdiag/reductions`` says of which it does). What it took over
from an earlier call of the same line proves nothing, and nobody is accused on it.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers.investigation.issued import Issued, issued, settled_ns
from distdiag.analyzers.investigation.rows import by_rank, records
from distdiag.analyzers.investigation.sources import recorded
from distdiag.run import Run
from distdiag.thinning import READ_AT_FIRST, READ_EACH

Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

OPERATION_BITS = 8
"""There are ten kinds of reductions."""
NEVER = np.iinfo(np.int64).max
_LINE = ["rank", "group_key", "path", "agree", "shapes", "module", "thread"]
"""What a recorder tells signatures apart by, as far as the kind is not known."""


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


def of_several_kinds(run: Run, calls: pd.DataFrame) -> pd.DataFrame:
    """Return those of some calls that agree in all else with calls of another kind, with ``kind`` and ``proven``."""
    kinds, names = pd.factorize(calls["reduce_op"])
    agree = calls["agree"].to_numpy()
    chosen = _of_several(agree, kinds) if len(names) > 1 else np.zeros(len(calls), dtype=bool)
    found = calls[chosen].assign(kind=kinds[chosen])
    return found.assign(proven=_proven(run, found) & (found["kind"] >= 0).to_numpy())


def _of_several(agree: Integers, kinds: Integers) -> Booleans:
    # A million calls have few signatures.
    distinct = np.asarray(pd.unique(pd.Series((agree << OPERATION_BITS) + kinds + 1))) >> OPERATION_BITS
    several, counts = np.unique(distinct, return_counts=True)
    return np.isin(agree, several[counts > 1])


def _proven(run: Run, calls: pd.DataFrame) -> Booleans:
    """Return of which calls the kind was read: the first, some, and each once a line was seen to have several."""
    lines = calls[_LINE].assign(shapes=pd.factorize(calls["shapes"])[0])
    line = lines.groupby(_LINE, dropna=False, observed=True, sort=False).ngroup().to_numpy()
    number = calls["call"].to_numpy()
    firsts = pd.DataFrame({"line": line, "kind": calls["kind"].to_numpy(), "number": number})
    ordinal = firsts.groupby(["line", "kind"]).cumcount().to_numpy()
    begun = firsts.groupby(["line", "kind"])["number"].min().reset_index().sort_values(["line", "number"])
    second = begun[begun.groupby("line").cumcount() == 1].set_index("line")["number"]
    varied = number >= second.reindex(line, fill_value=NEVER).to_numpy()
    whole = number < calls["rank"].map(_first_holes(run, calls["rank"].unique())).to_numpy()
    foreign = ~calls["rank"].isin(recorded(run)).to_numpy()
    read: Booleans = foreign | varied | (number % READ_EACH == 1) | (whole & (ordinal < READ_AT_FIRST))
    return read


def _first_holes(run: Run, ranks: Integers) -> dict[int, int]:
    """Return by rank the number of the first call before which its log has lost one."""
    calls = run.calls.loc[run.calls["rank"].isin(ranks), ["rank", "call"]].sort_values(["rank", "call"])
    behind = calls[calls["call"] != calls.groupby("rank").cumcount() + 1]
    holes = by_rank(behind.groupby("rank")["call"].min())
    return {int(rank): int(holes.get(int(rank), NEVER)) for rank in ranks}


def told_apart(calls: pd.DataFrame, several: pd.DataFrame) -> Integers:
    """Return what has to agree of each call, with its kind where that tells calls of one group apart.

    It has to be known of all of them. Where members have no kind in common it is not the order in which they differ.
    """
    agree: Integers = calls["agree"].to_numpy().astype(np.int64)
    if several.empty:
        return agree
    agree = agree.copy()
    positions = calls.index.get_indexer(several.index)
    for rows in several.groupby(["group_key", "agree"], observed=True, sort=False).indices.values():
        alike = several.iloc[rows]
        kinds, ranks = alike["kind"].to_numpy(), alike["rank"].to_numpy()
        in_common = set.intersection(*(set(kinds[ranks == rank].tolist()) for rank in np.unique(ranks)))
        if not alike["proven"].all() or not in_common:
            continue
        mixed = {kind: zlib.crc32(kind.encode()) for kind in set(alike["reduce_op"])}
        agree[positions[rows]] ^= alike["reduce_op"].map(mixed).to_numpy()
    return agree


def reduction_mismatches(run: Run, several: pd.DataFrame) -> Iterator[ReductionMismatch]:
    """Yield per group the first reduction whose kinds are known and differ."""
    candidates = several[several["proven"]]
    counts = candidates.groupby(["group_key", "seq"], observed=True)["kind"].nunique()
    firsts = counts[counts > 1].reset_index().groupby("group_key", observed=True)["seq"].min()
    for key, seq in firsts.items():
        yield _mismatch(run, several[(several["group_key"] == key) & (several["seq"] == seq)])


def _mismatch(run: Run, members: pd.DataFrame) -> ReductionMismatch:
    rows = members[members["proven"]]
    kinds = dict(zip(rows["rank"].astype(int).tolist(), rows["reduce_op"].astype(str).tolist(), strict=True))
    votes = rows["reduce_op"].value_counts()
    majority = votes.index[0] if 2 * int(votes.iloc[0]) > len(members) else None
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
