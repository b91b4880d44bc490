"""The clocks of several hosts, made one: offset and drift of each from the ends of collectives, and the error left.

A collective ends at about the same moment on all members, so what a clock sees differently is its own error. Over
hours clocks drift apart, by some tens of parts per million; a straight line per clock takes that away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from distdiag.engine import Engine

if TYPE_CHECKING:
    import ibis

SAMPLED_COLLECTIVES = 4000
WINDOWS = 12
"""The line goes through the medians of so many stretches of the run: single late ends do not bend it."""
ENOUGH_COLLECTIVES = 20
COMPARABLE_NS = 1_000_000
"""Clocks that agree to a millisecond tell who arrived last; others leave it to durations, which need no clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What to take off the moments of each rank, and how well that makes clocks agree."""

    offsets_ns: Mapping[int, float]
    """By rank, at ``origin_ns``."""
    drifts: Mapping[int, float]
    """By rank, nanoseconds per nanosecond."""
    origin_ns: int
    error_ns: int | None
    """What 90 % of ends still differ by; 0 on one clock, None where nothing could be compared."""

    @property
    def comparable(self) -> bool:
        """Return whether moments of different ranks can be compared."""
        return self.error_ns is not None and self.error_ns <= COMPARABLE_NS

    def applied(self, engine: Engine, calls: ibis.Table) -> ibis.Table:
        """Return the calls with their moments on one clock."""
        if not self.offsets_ns:
            return calls
        ranks = sorted(self.offsets_ns)
        frame = pd.DataFrame(
            {
                "rank": np.array(ranks, dtype=np.int64),
                "late_ns": np.array([self.offsets_ns[rank] for rank in ranks], dtype=float),
                "drift": np.array([self.drifts[rank] for rank in ranks], dtype=float),
            }
        )
        joined = calls.left_join(engine.memory(frame), "rank").drop("rank_right")
        shift = joined.late_ns.fill_null(0.0) + joined.drift.fill_null(0.0) * (joined.start_ns - self.origin_ns)
        moved = {name: joined[name] - shift.round().cast("int64") for name in ("start_ns", "begun_ns", "end_ns")}
        return joined.mutate(**moved).drop("late_ns", "drift")


def align(engine: Engine, calls: ibis.Table, hosts: Mapping[int, str]) -> Alignment:
    """Return how to align the clocks of ranks on the given hosts, from their calls."""
    codes = {host: number for number, host in enumerate(sorted(set(hosts.values())))}
    if len(codes) < 2:
        return Alignment(offsets_ns={}, drifts={}, origin_ns=0, error_ns=0)
    ends = _ends(engine, calls, {rank: codes[host] for rank, host in hosts.items()})
    counts = ends.groupby("clock")["late"].count()
    if len(counts) < len(codes) or int(counts.min()) < ENOUGH_COLLECTIVES or not _joined(ends):
        return Alignment(offsets_ns={}, drifts={}, origin_ns=0, error_ns=None)
    origin = int(ends["end_ns"].min())
    lines = {int(str(code)): _line(rows, origin) for code, rows in ends.groupby("clock")}
    expected = ends["clock"].map(lambda code: lines[code][0]).to_numpy(dtype=float)
    slopes = ends["clock"].map(lambda code: lines[code][1]).to_numpy(dtype=float)
    moments = (ends["end_ns"] - origin).to_numpy(dtype=float)
    left = np.abs(ends["late"].to_numpy(dtype=float) - expected - slopes * moments)
    return Alignment(
        offsets_ns={rank: lines[codes[host]][0] for rank, host in hosts.items()},
        drifts={rank: lines[codes[host]][1] for rank, host in hosts.items()},
        origin_ns=origin,
        error_ns=round(float(np.quantile(left, 0.9))),
    )


def _ends(engine: Engine, calls: ibis.Table, codes: Mapping[int, int]) -> pd.DataFrame:
    """Return how late each clock saw sampled collectives end, beside the median of all clocks."""
    clocks = pd.DataFrame({"rank": list(codes), "clock": list(codes.values())}, dtype="int64")
    shared = calls.filter(~calls.p2p)
    known = engine.frame(shared.aggregate(least=shared.seq.min(), most=shared.seq.max(), groups=shared.group.nunique()))
    if pd.isna(known["most"].iloc[0]):
        return pd.DataFrame({"clock": [], "late": [], "end_ns": []})
    each = int((known["most"].iloc[0] - known["least"].iloc[0]) * known["groups"].iloc[0]) // SAMPLED_COLLECTIVES
    sampled = shared.filter(shared.seq % (each + 1) == 0).join(engine.memory(clocks), "rank")
    seen = engine.frame(sampled.group_by("group", "seq", "clock").agg(end_ns=sampled.end_ns.min()))
    collectives = seen.groupby(["group", "seq"])["end_ns"]
    seen = seen.assign(late=seen["end_ns"] - collectives.transform("median"), clocks=collectives.transform("count"))
    return seen[seen["clocks"] > 1].sort_values("end_ns", kind="stable")


def _joined(ends: pd.DataFrame) -> bool:
    """Return whether all clocks compare with one another, directly or through others."""
    islands: list[set[int]] = []
    for _, clocks in ends.groupby("group")["clock"]:
        own = set(clocks.unique().tolist())
        apart = [island for island in islands if not island & own]
        islands = [*apart, own.union(*(island for island in islands if island & own))]
    return len(islands) == 1


def _line(rows: pd.DataFrame, origin: int) -> tuple[float, float]:
    """Return where a clock's lateness begins, and how it grows."""
    moments, late = (rows["end_ns"] - origin).to_numpy(dtype=float), rows["late"].to_numpy(dtype=float)
    parts = np.array_split(np.arange(len(rows)), min(WINDOWS, len(rows)))
    middles = np.array([np.median(moments[part]) for part in parts])
    medians = np.array([np.median(late[part]) for part in parts])
    if np.ptp(middles) == 0:
        return float(np.median(late)), 0.0
    slope, start = np.polyfit(middles, medians, 1)
    return float(start), float(slope)
