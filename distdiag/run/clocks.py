"""One clock for all ranks: what to add to each rank's monotonic clock to get the run's time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from distdiag.deferred import deferred
from distdiag.events import Header

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

SAME_CLOCK_NS = 1_000_000_000
"""Headers of one host whose pairs differ by more do not share a clock (containers, a host name used twice)."""
ENOUGH_COLLECTIVES = 5
"""Fewer common collectives give no median worth correcting a clock by."""
FARTHEST_NS = 3600 * 1_000_000_000
"""Logs whose few common collectives seem so far apart may be of two launches that only look like one."""
SAMPLED_COLLECTIVES = 200
"""A median over the newest of them is as good as over all, and cheap at a thousand ranks."""
SAMPLED_IN_ALL = 12_800
"""Where clocks are many, fewer of each: each is compared with all others."""
LEAST_SAMPLED = 25
REMAINING = 0.9
"""Share of the collectives whose ends differ by no more than the error that remains."""
ONE_SIDED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Ops that end on some members while others have not come: their ends say nothing of each other."""
SEQ_BITS = 40
"""Of the number by which a collective is told from those of other groups."""
BEGUN_TOGETHER_NS = 1_000_000_000
"""Clocks by which ranks begin their collectives less than this apart are taken for right, by that much."""
NOT_SEEN = "unknown"
"""Clock of an end whose moment nobody saw."""


@dataclass(frozen=True, slots=True)
class Clock:
    """One monotonic clock, and what maps it to wall time."""

    host: str
    offset_ns: int


def unnamed(rank: int) -> str:
    """Return what the host of a rank is called that tells none: it may be any."""
    return f"rank {rank}"


def clocks_of(headers: Mapping[int, Header], ranks: Iterable[int]) -> dict[int, Clock]:
    """Return the clock of each rank: ranks of one host share an exact one.

    A rank without a header gets the median of the others' and counts as a host of its own.
    """
    clocks: dict[int, Clock] = {}
    shared: dict[str, Clock] = {}
    for rank in sorted(headers):
        header = headers[rank]
        own = Clock(header.host or unnamed(rank), header.wall_ns - header.monotonic_ns)
        clock = shared.setdefault(own.host, own)
        clocks[rank] = clock if abs(own.offset_ns - clock.offset_ns) < SAME_CLOCK_NS else own
    offsets = sorted(clock.offset_ns for clock in clocks.values())
    typical = offsets[len(offsets) // 2] if offsets else 0
    return {rank: clocks.get(rank) or Clock(unnamed(rank), typical) for rank in ranks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How the clocks of a run were made one."""

    added_ns: Mapping[int, int]
    """By rank, what to add to its wall time; nothing for clocks that were right all along."""
    error_ns: int | None
    """What may remain between any two of them; 0 where there is only one, None where some cannot be compared."""
    islands: tuple[frozenset[int], ...]
    """Ranks whose clocks could be compared with one another, the largest first; more than one where not all could."""


def agreement(calls: pd.DataFrame, clocks: Mapping[int, Clock]) -> Agreement:
    """Return how to make clocks one, from the collectives that they saw in common.

    A collective ends at about the same moment everywhere, so the median difference of a clock to the others' ends is
    that clock's error. Clocks that share too few of them are still bound by cause and effect: no member sees the end
    of a collective before all members have begun it. Clocks that share none, directly or through others, cannot be
    compared, unless no end is told anywhere and all begins agree.
    """
    distinct = sorted(set(clocks.values()), key=lambda clock: (clock.host, clock.offset_ns))
    if len(distinct) < 2:
        return Agreement(added_ns={}, error_ns=0, islands=(frozenset(clocks),))
    order = {clock: number for number, clock in enumerate(distinct)}
    numbers = {rank: order[clock] for rank, clock in clocks.items()}
    comparison = _Comparison(_newest_ends(calls, numbers), len(distinct))
    islands = []
    while comparison.unplaced:
        islands.append(comparison.island())
    late = {number: at for island in islands for number, at in island.items()}
    error_ns = comparison.error_ns
    if len(islands) > 1 and (apart_ns := _begun_apart(calls, clocks, numbers, late)) is not None:
        islands, error_ns = [late], max(error_ns, apart_ns)
    ranks = [frozenset(rank for rank, number in numbers.items() if number in island) for island in islands]
    return Agreement(
        added_ns={rank: -round(late[number]) for rank, number in numbers.items()},
        error_ns=round(error_ns) if len(islands) == 1 else None,
        islands=tuple(sorted(ranks, key=lambda island: (-len(island), min(island)))),
    )


def _begun_apart(
    calls: pd.DataFrame, clocks: Mapping[int, Clock], numbers: Mapping[int, int], late: Mapping[int, float]
) -> float | None:
    """Return by how much clocks that name no host differ where ranks begin collectives, None where that is much.

    Some recorders tell no ends. Clocks that were wrong would show at each begin, unless the ranks had been as far apart
    all the time, in the other direction.
    """
    if any(clock.host != unnamed(rank) for rank, clock in clocks.items()):
        return None
    mine = calls.loc[~calls["p2p"], ["rank", "group_key", "seq", "start_ns"]]
    newest = mine.groupby(["rank", "group_key"], observed=True).tail(SAMPLED_COLLECTIVES)
    at = newest["start_ns"] - newest["rank"].map(numbers).map(late).round().astype("int64")
    apart = (at - at.groupby([newest["group_key"], newest["seq"]], observed=True).transform("median")).abs()
    shared = newest.groupby(["group_key", "seq"], observed=True)["rank"].transform("size") > 1
    by_rank = apart[shared].groupby(newest["rank"][shared])
    if set(by_rank.groups) != set(clocks) or int(by_rank.size().min()) < ENOUGH_COLLECTIVES:
        return None
    worst = float(by_rank.quantile(REMAINING).max())
    return worst if worst < BEGUN_TOGETHER_NS else None


class _Comparison:
    """Places one clock after the other on a common time, each by those that are placed already."""

    def __init__(self, ends: pd.DataFrame, count: int) -> None:
        """Take the ends of collectives as ``count`` clocks saw them."""
        self._ends, self._seen = ends, _seen_by_several(ends)
        self._late: npt.NDArray[np.float64] = np.full(count, np.nan)
        """How much later than the common time each clock is, NaN while it is not placed."""
        self._errors = np.zeros(count)
        self._hops = np.zeros(count)
        """Over how many others each is compared with the first ones, at most; 0 where its error is a bound."""
        self.unplaced = set(range(count))

    @property
    def error_ns(self) -> float:
        """Return how much the worst of the clocks may still be wrong."""
        return float(self._errors.max())

    def island(self) -> dict[int, float]:
        """Place all clocks that compare with one another, the most there are; return how late each of them is."""
        placed = self._first()
        while True:
            more = self._next()
            if not more:
                break
            placed += more
        self._refine()
        late = self._late[placed]
        late -= np.median(late)  # most clocks are right
        self._late[placed] = np.nan
        return dict(zip(placed, late.tolist(), strict=True))

    def _refine(self) -> None:
        """Let all collectives of the clocks that are placed say how late each is: one group alone may be biased."""
        seen = self._seen
        at = seen["end"] - self._late[seen["clock"]]
        late = (at - at.groupby(seen["op"]).transform("median")).dropna()
        by_clock = late.groupby(seen["clock"][late.index])
        told = by_clock.agg(["size", "median"])
        told = told[(told["size"] >= ENOUGH_COLLECTIVES).to_numpy() & (self._hops[told.index] > 0)]
        clocks = told.index.to_numpy()
        middles = np.zeros(len(self._late))
        middles[clocks] = told["median"]
        self._late[clocks] += middles[clocks]
        remaining = (late - middles[seen["clock"][late.index]]).abs().groupby(seen["clock"][late.index])
        self._errors[clocks] = remaining.quantile(REMAINING)[clocks] * self._hops[clocks]

    def _place(self, clock: int, late: float, error: float) -> int:
        self._late[clock], self._errors[clock] = late, error
        self.unplaced.discard(clock)
        return clock

    def _first(self) -> list[int]:
        """Place the clocks of the group that compares most of them, or only one."""
        rows = self._seen[self._seen["clock"].isin(self.unplaced)]
        sizes = rows.groupby(["group", "clock"])["end"].agg(["size", "max"]).reset_index()
        enough = sizes[sizes["size"] >= ENOUGH_COLLECTIVES].groupby("group")["max"].agg(["size", "max"])
        enough = enough[enough["size"] > 1]
        if enough.empty:
            clock = int(rows["clock"].mode().iloc[0]) if len(rows) else min(self.unplaced)
            return [self._place(clock, 0.0, 0.0)]
        best = enough.sort_values(["size", "max"], kind="stable").index[-1]
        known = sizes[(sizes["group"] == best) & (sizes["size"] >= ENOUGH_COLLECTIVES)]["clock"]
        mine = rows[(rows["group"] == best) & rows["clock"].isin(known)]
        late = mine["end"] - mine.groupby("op")["end"].transform("median")
        return self._place_all(mine["clock"], late, hops=1)

    def _next(self) -> list[int]:
        """Place the clocks that share enough with those placed already, else that which shares most, if any does."""
        seen = self._seen
        if seen.empty or not self.unplaced:
            return []
        at = seen["end"] - self._late[seen["clock"]]
        common = at.groupby(seen["op"]).transform("median")
        bound = common.notna() & seen["clock"].isin(self.unplaced)
        if not bound.any():
            return []
        newest = seen[bound].groupby("clock").tail(SAMPLED_COLLECTIVES)
        late = newest["end"] - common[newest.index]
        counts = late.groupby(newest["clock"]).transform("size")
        enough = counts >= ENOUGH_COLLECTIVES
        if enough.any():
            return self._place_all(newest["clock"][enough], late[enough], hops=float(self._hops.max()) + 1)
        near = late.groupby(newest["clock"]).agg(["size", "median"]).sort_values("size", kind="stable")
        near = near[near["median"].abs() < FARTHEST_NS]
        if near.empty:
            return []
        clock, middle = int(near.index[-1]), float(near["median"].iloc[-1])
        return [self._place(clock, *self._bounded(clock, middle))]

    def _place_all(self, clocks: pd.Series[int], late: pd.Series[float], hops: float) -> list[int]:
        middles = late.groupby(clocks).median()
        remaining = (late - clocks.map(middles)).abs().groupby(clocks).quantile(REMAINING)
        self._hops[middles.index] = hops
        placed = zip(middles.index.tolist(), middles.tolist(), remaining.tolist(), strict=True)
        return [self._place(clock, at, error * hops) for clock, at, error in placed]

    def _bounded(self, clock: int, late: float) -> tuple[float, float]:
        """Return how late a clock is, and by how much more or less it may be for all that cause and effect tell."""
        ends = self._ends
        at = self._late[ends["clock"].to_numpy()]
        known, own = ends[~np.isnan(at)], ends[ends["clock"] == clock]
        at = at[~np.isnan(at)]
        begun, ended = (known["begin"] - at).groupby(known["op"]).max(), (known["end"] - at).groupby(known["op"]).min()
        mine = own.groupby("op").agg(begun=("begin", "max"), ended=("end", "min"))
        least, most = float((mine["begun"] - ended).max()), float((mine["ended"] - begun).min())
        if least < most:
            late = min(max(late, least), most)
        return late, float(self._errors.max()) + max(abs(late - least), abs(most - late))


def _newest_ends(calls: pd.DataFrame, clocks: Mapping[int, int]) -> pd.DataFrame:
    """Return the newest collectives that each rank saw end, with the clock it saw them on."""
    mask = calls["end_ns"].notna() & ~calls["failed"] & ~calls["p2p"]
    usable = calls.loc[mask, ["rank", "group_key", "seq", "op", "clock", "start_ns", "end_ns"]]
    sampled = min(SAMPLED_COLLECTIVES, max(LEAST_SAMPLED, SAMPLED_IN_ALL // len(set(clocks.values()))))
    newest = usable.groupby(["rank", "group_key"], observed=True).tail(sampled)
    newest = newest[~newest["op"].isin(ONE_SIDED) & (newest["clock"] != NOT_SEEN)]
    starts, ends = newest["start_ns"].to_numpy(dtype=np.int64), newest["end_ns"].to_numpy(dtype=np.int64)
    origin = ends.min() if len(ends) else 0
    groups = newest["group_key"].cat.codes.to_numpy().astype(np.int64)
    return pd.DataFrame(
        {
            "group": groups,
            "op": (groups << SEQ_BITS) + newest["seq"].to_numpy(),
            "clock": newest["rank"].map(clocks).to_numpy(dtype=np.int64),
            "begin": (starts - origin).astype(float),  # a float holds these exactly
            "end": (ends - origin).astype(float),
        }
    )


def _seen_by_several(ends: pd.DataFrame) -> pd.DataFrame:
    """Return the ends of the collectives that several clocks saw, once for each of them, in the order of time."""
    seen = ends.groupby(["group", "op", "clock"], as_index=False)["end"].median()
    shared = seen.groupby("op")["clock"].transform("size") > 1
    kept: pd.DataFrame = seen[shared].sort_values("end", kind="stable", ignore_index=True)
    return kept
