"""One clock for all ranks: what to add to each rank's monotonic clock to get the run's time."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from distdiag.events import Header

SAME_CLOCK_NS = 1_000_000_000
"""Headers of one host whose pairs differ by more do not share a clock (containers, a host name used twice)."""
ENOUGH_COLLECTIVES = 5
"""Fewer common collectives give no median worth correcting a clock by."""
SAMPLED_COLLECTIVES = 200
"""A median over the newest of them is as good as over all, and cheap at a thousand ranks."""


def wall_offsets(headers: Mapping[int, Header]) -> dict[int, int]:
    """Return per rank what maps its monotonic clock to wall time; ranks of one host share one exact clock."""
    offsets: dict[int, int] = {}
    of_host: dict[str, int] = {}
    for rank in sorted(headers):
        header = headers[rank]
        offset = header.wall_ns - header.monotonic_ns
        shared = of_host.setdefault(header.host, offset)
        offsets[rank] = shared if abs(offset - shared) < SAME_CLOCK_NS else offset
    return offsets


def corrections(calls: pd.DataFrame, offsets: Mapping[int, int]) -> tuple[dict[int, int], int | None]:
    """Return per rank what to add to its wall time, from the ends of common collectives, and the error that remains.

    A collective ends at about the same moment everywhere, so the median difference of a clock to the others'
    ends is that clock's error. Ranks with the same offset share a clock and are corrected alike. The error is
    None where nothing could be compared; it is 0 where there is only one clock.
    """
    clocks = {
        rank: number
        for number, offset in enumerate(sorted(set(offsets.values())))
        for rank in offsets
        if offsets[rank] == offset
    }
    if len(set(clocks.values())) < 2:
        return {}, 0
    ends = _ends_by_clock(calls, clocks)
    if ends.empty:
        return {}, None
    late = ends.sub(ends.median(axis="columns"), axis="index")
    known = late.columns[late.count() >= ENOUGH_COLLECTIVES]
    skew = late[known].median()
    remaining = late[known].sub(skew, axis="columns").abs().quantile(0.9).max()
    added = {rank: -round(float(skew[clock])) for rank, clock in clocks.items() if clock in skew.index}
    return added, None if pd.isna(remaining) else round(float(remaining))


def _ends_by_clock(calls: pd.DataFrame, clocks: Mapping[int, int]) -> pd.DataFrame:
    """Return the ends of sampled collectives, a row for each and a column per clock, as offsets that fit a float."""
    usable = calls[calls["end_ns"].notna() & ~calls["failed"] & ~calls["p2p"]]
    if usable.empty:
        return pd.DataFrame()
    newest = usable.groupby(["rank", "group_key"], observed=True).tail(SAMPLED_COLLECTIVES)
    ends = newest["end_ns"].to_numpy(dtype=np.int64)
    frame = pd.DataFrame(
        {
            "group_key": newest["group_key"].to_numpy(),
            "seq": newest["seq"].to_numpy(),
            "clock": newest["rank"].map(clocks).to_numpy(),
            "end": (ends - ends.min()).astype(float),
        }
    )
    table = frame.pivot_table(index=["group_key", "seq"], columns="clock", values="end", aggfunc="median")
    return table[table.count(axis="columns") >= 2]
