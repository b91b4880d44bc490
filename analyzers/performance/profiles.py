"""What profiler traces say of each rank's device: shares, overlap, why it was idle, and who came last.

Percentages are of a trace's window, the time from the first to the last work of its measured steps. What a trace
does not tell is None, and ``unknown`` says why.
"""

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from distdiag.run import Run

NO_COMMUNICATION = "no communication kernel ran in the window"
NO_STEPS = "fewer than two steps are marked, and the kernels do not number their collectives"
ALONE = "waiting shows only where traces of several ranks hold the same collectives"
NO_GAP = "nothing was idle between two activities"
NO_LAUNCH = "no launch is in the trace"
NO_TIME = "the activities take no time"
MICROSECOND_NS = 1000
APART_NS = 60_000_000_000
"""Kernels of one collective that start further apart are of different runs."""
LAST_BY = 0.05
"""Of two ranks in a collective, the later one is last if the earlier spends so much more time in it."""


def profiles_of(run: Run) -> list[dict[str, Any]]:
    """Return one row per trace and device, in the order of ranks, as the report's ``performance.profiler``."""
    waits = waits_in(run)
    return [_row(row, waits.get(int(row["rank"]))) for row in run.profiles.to_dict("records")]


def _row(row: Mapping[Any, Any], waits: "Waits | None") -> dict[str, Any]:
    unknown: dict[str, str] = {}
    window_ns, communication_ns = int(row["window_ns"]), int(row["communication_ns"])
    if not window_ns:
        reason = NO_TIME if row["activities"] else row["notes"][0]
        unknown |= dict.fromkeys(("idle_pct", "compute_pct", "non_compute_pct", "overlap_pct"), reason)
    elif not communication_ns:
        unknown["overlap_pct"] = NO_COMMUNICATION
    if waits is None and communication_ns:
        unknown["waiting"] = ALONE if row["steps"] else NO_STEPS
    if row["launch_delays_ns"] is None and row["activities"]:
        unknown["launch_delay_us"] = NO_LAUNCH
    compute_ns, idle_ns, exposed_ns = int(row["compute_ns"]), int(row["idle_ns"]), int(row["exposed_ns"])
    parts_ns = {
        "idle": idle_ns,
        "compute": compute_ns,
        "non_compute": window_ns - compute_ns - idle_ns,
        "communication": communication_ns,
        "exposed": exposed_ns,
        "memory": int(row["memory_ns"]),
    }
    return {
        "rank": int(row["rank"]),
        "file": row["file"],
        "device": None if pd.isna(row["device"]) else int(row["device"]),
        "steps": list(row["steps"]),
        "window_us": _us(window_ns),
        **{f"{name}_pct": _percent(part_ns, window_ns) for name, part_ns in parts_ns.items()},
        **{f"{name}_us": _us(part_ns) for name, part_ns in parts_ns.items()},
        "overlap_pct": _percent(communication_ns - exposed_ns, communication_ns),
        "idle_waits": _waits(row),
        "launch_delay_us": _delays(row["launch_delays_ns"]),
        "activities": int(row["activities"]),
        "without_launch": int(row["without_launch"]),
        "in_last_step": int(row["in_last_step"]),
        "streams": [_stream(each) for each in row["streams"]],
        "kernels": [_in_microseconds(each) for each in row["kernels"]],
        "groups": [_group(each) for each in row["groups"]],
        "per_step": [_step(each) for each in row["per_step"]],
        "waiting": None if waits is None else waits.as_dict(),
        "unknown": unknown,
        "notes": list(row["notes"]),
    }


def _stream(told: Mapping[str, Any]) -> dict[str, Any]:
    idle, queue = told["idle"], told["queue"]
    return {
        "stream": told["stream"],
        "activities": told["activities"],
        "busy_us": _us(told["busy_ns"]),
        "idle_waits": None if idle is None else _waits(idle),
        "queue": None
        if queue is None
        else {
            "mean": round(queue["mean"], 2),
            "longest": queue["longest"],
            "full_pct": None if queue["full_share"] is None else round(100 * queue["full_share"], 2),
        },
        "unknown": ({"idle_waits": NO_GAP} if idle is None else {}) | ({"queue": NO_LAUNCH} if queue is None else {}),
    }


def _waits(told: Mapping[Any, Any]) -> dict[str, Any]:
    parts = {name: int(told[f"{name}_ns"]) for name in ("host_wait", "kernel_wait", "other_wait")}
    total = sum(parts.values())
    return {f"{name}_us": _us(part) for name, part in parts.items()} | {
        f"{name}_pct": _percent(part, total) for name, part in parts.items()
    }


def _group(told: Mapping[str, Any]) -> dict[str, Any]:
    return _in_microseconds(told) | {"overlap_pct": _percent(told["busy_ns"] - told["exposed_ns"], told["busy_ns"])}


def _step(told: Mapping[str, Any]) -> dict[str, Any]:
    communication_ns = told["communication_ns"]
    return {
        **_in_microseconds({name: value for name, value in told.items() if name != "groups"}),
        "overlap_pct": _percent(communication_ns - told["exposed_ns"], communication_ns),
        "groups": [_group(each) for each in told["groups"]],
    }


def _in_microseconds(told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{name.removesuffix('_ns')}_us" if name.endswith("_ns") else name: _us(value)
        if name.endswith("_ns")
        else value
        for name, value in told.items()
    }


def _delays(delays_ns: Iterable[int] | None) -> dict[str, float] | None:
    return None if delays_ns is None else dict(zip(("p10", "p50", "p90"), map(_us, delays_ns), strict=True))


def _us(duration_ns: int) -> float:
    return duration_ns / MICROSECOND_NS


def _percent(part_ns: int, whole_ns: int) -> float | None:
    return round(100 * part_ns / whole_ns, 2) if whole_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What one rank waited in collectives, and what it made others wait."""

    ranks: tuple[int, ...]
    """Whose traces were compared."""
    collectives: int
    came_last: int
    waited_ns: int
    caused_ns: int
    """Mean over the other ranks, summed over the collectives in which this rank came last."""
    own_ns: int
    """What the collectives take when nobody is late."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report's ``waiting``."""
        return {
            "ranks": list(self.ranks),
            "collectives": self.collectives,
            "came_last_pct": round(100 * self.came_last / self.collectives, 1),
            "waited_us": _us(self.waited_ns),
            "waits_caused_us": _us(self.caused_ns),
            "transfer_us": _us(self.own_ns),
        }


_waits_in: weakref.WeakKeyDictionary[Run, Mapping[int, Waits]] = weakref.WeakKeyDictionary()
"""Two findings and the summary ask."""


def waits_in(run: Run) -> Mapping[int, Waits]:
    """Return the waiting of a run's traces by rank, computed once."""
    known = _waits_in.get(run)
    if known is None:
        known = _waits_in[run] = waits_of(run.collectives)
    return known


def waits_of(collectives: pd.DataFrame) -> dict[int, Waits]:
    """Return the waiting by rank, from durations alone: no clocks are compared.

    A kernel of a collective runs from its rank's arrival to the common end, so the shortest is that of the rank that
    came last, and what the others take longer they wait (``duration - min over ranks``, as in TraceLens). Only
    collectives count that every rank that knows the group has, and groups of which all have equally many.
    """
    matched = _matched(collectives)
    if matched.empty:
        return {}
    keys = ["group", "step", "number"]
    by_collective = matched.groupby(keys, sort=True)
    least = by_collective["duration_ns"].transform("min")
    mean = by_collective["duration_ns"].transform("mean")
    members = by_collective["rank"].transform("size")
    # The shortest of nearly equal ones is chance: then nobody was last.
    spread = (mean * members - least) / (members - 1)
    late = (matched["duration_ns"] == least) & (spread - least > LAST_BY * spread)
    measured = matched.assign(
        waited_ns=matched["duration_ns"] - least, last=late, caused_ns=((spread - least) * late), own_ns=least
    )
    ranks = tuple(sorted(set(matched["rank"].tolist())))
    return {
        int(str(rank)): Waits(
            ranks=ranks,
            collectives=len(rows),
            came_last=int(rows["last"].sum()),
            waited_ns=int(rows["waited_ns"].sum()),
            caused_ns=int(rows["caused_ns"].sum()),
            own_ns=int(rows["own_ns"].sum()),
        )
        for rank, rows in measured.groupby("rank", sort=True)
    }


def _matched(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return the collectives that can be compared, one row per rank and collective."""
    if collectives["rank"].nunique() < 2:
        return collectives.iloc[:0]
    # Of a rank with several traces it is not known which belongs to the others'.
    files = collectives.groupby("rank")["file"].transform("nunique")
    single = collectives[files == 1]
    keys = ["group", "step", "number"]
    once = single[~single.duplicated(["rank", *keys], keep=False)]
    of_step = once.groupby(["group", "step", "rank"]).size().unstack("rank")
    expected = of_step.groupby("group").count().gt(0).sum(axis=1)
    group = of_step.index.get_level_values("group")
    everybody = (of_step.count(axis=1) == expected.reindex(group).to_numpy()) & (of_step.count(axis=1) > 1)
    alike = of_step.index[everybody & (of_step.min(axis=1) == of_step.max(axis=1))]
    kept = once[pd.MultiIndex.from_frame(once[["group", "step"]]).isin(alike)]
    of_collective = kept.groupby(keys)
    whole = of_collective["rank"].transform("size") == kept["group"].map(expected)
    near = of_collective["start_ns"].transform("max") - of_collective["start_ns"].transform("min") < APART_NS
    return kept[(whole & near).to_numpy(dtype=bool)]
