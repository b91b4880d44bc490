"""One clock for all ranks: what to add to each rank's monotonic clock to get the run's time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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
SAMPLED_COLLECTIVES = 200
"""A median over the newest of them is as good as over all, and cheap at a thousand ranks."""


@dataclass(frozen=True, slots=True)
class Clock:
    """One monotonic clock, and what maps it to wall time."""

    host: str
    offset_ns: int


def clocks_of(headers: Mapping[int, Header], ranks: Iterable[int]) -> dict[int, Clock]:
    """Return the clock of each rank: ranks of one host share an exact one.

    A rank without a header gets the median of the others' and counts as a host of its own.
    """
    clocks: dict[int, Clock] = {}
    shared: dict[str, Clock] = {}
    for rank in sorted(headers):
        header = headers[rank]
        own = Clock(header.host, header.wall_ns - header.monotonic_ns)
        clock = shared.setdefault(header.host, own)
        clocks[rank] = clock if abs(own.offset_ns - clock.offset_ns) < SAME_CLOCK_NS else own
    offsets = sorted(clock.offset_ns for clock in clocks.values())
    typical = offsets[len(offsets) // 2] if offsets else 0
    return {rank: clocks.get(rank) or Clock(f"rank {rank}", typical) for rank in ranks}


def corrections(calls: pd.DataFrame, clocks: Mapping[int, Clock]) -> tuple[dict[int, int], int | None]:
    """Return per rank what to add to its wall time, from the ends of common collectives, and the error that remains.

    A collective ends at about the same moment everywhere, so the median difference of a clock to the others'
    ends is that clock's error. The error that remains is None where nothing could be compared, and 0 where
    there is only one clock.
    """
    distinct = sorted(set(clocks.values()), key=lambda clock: (clock.host, clock.offset_ns))
    if len(distinct) < 2:
        return {}, 0
    order = {clock: number for number, clock in enumerate(distinct)}
    numbers = {rank: order[clock] for rank, clock in clocks.items()}
    late = _lateness(calls, numbers)
    if late.empty:
        return {}, None
    skew = late.groupby("clock")["late"].median()
    remaining = (late["late"] - late["clock"].map(skew)).abs().groupby(late["clock"]).quantile(0.9).max()
    added = {rank: -round(float(skew[number])) for rank, number in numbers.items() if number in skew.index}
    return added, None if pd.isna(remaining) else round(float(remaining))


def _lateness(calls: pd.DataFrame, clocks: Mapping[int, int]) -> pd.DataFrame:
    """Return how much later than the median clock each clock saw sampled collectives end.

    Clocks that saw too few are left out.
    """
    mask = calls["end_ns"].notna() & ~calls["failed"] & ~calls["p2p"]
    usable = calls.loc[mask, ["rank", "group_key", "seq", "end_ns"]]
    if usable.empty:
        return pd.DataFrame()
    newest = usable.groupby(["rank", "group_key"], observed=True).tail(SAMPLED_COLLECTIVES)
    ends = newest["end_ns"].to_numpy(dtype=np.int64)
    frame = pd.DataFrame(
        {
            "group": newest["group_key"].cat.codes.to_numpy(),
            "seq": newest["seq"].to_numpy(),
            "clock": newest["rank"].map(clocks).to_numpy(),
            "end": (ends - ends.min()).astype(float),  # offsets that a float holds exactly
        }
    )
    seen = frame.groupby(["group", "seq", "clock"], as_index=False)["end"].median()
    collectives = seen.groupby(["group", "seq"])["end"]
    shared = (collectives.transform("count") >= 2).to_numpy()
    late = seen.assign(late=seen["end"] - collectives.transform("median")).loc[shared, ["clock", "late"]]
    known: pd.DataFrame = late[late.groupby("clock")["late"].transform("count") >= ENOUGH_COLLECTIVES]
    return known
