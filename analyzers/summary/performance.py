"""Where the time of the steps goes, per rank and group: an observation for the report, not an accusation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from distdiag.analyzers.performance import Measured, measure
from distdiag.analyzers.performance.efficiency import bus_bytes, efficiency_of
from distdiag.analyzers.performance.ledger import PARTS
from distdiag.analyzers.performance.pipeline import Pipeline, pipeline_of
from distdiag.analyzers.performance.pipeline.bubble import Bubble, formula
from distdiag.analyzers.performance.profiles import profiles_of
from distdiag.analyzers.summary.what_if import simulations
from distdiag.run import Run

MORE = (2, 4, 8, 16)
"""Times the micro-batches there are, for which the bubble is foretold."""
DIGITS = 4
NOTABLY_SLOWER = 1.1
ENOUGH_TO_COMPARE_STEPS = 8
"""Beside the warm-up: of fewer steps one hiccup makes a rank look slow."""
LEAST_DIFFERENCE_SECONDS = 0.005
"""Ranks that share cores differ by less than this without a reason."""
NO_TOKENS = "tokens were not recorded: say distdiag.step(tokens=...), padding left out"
SECOND_NS = 1e9
SHARES = ("compute", "communication", "data", "wait")
"""They add up to one: communication is what calls take when nobody is late, wait what they take longer."""


def pipeline_in(run: Run, measured: Measured) -> tuple[dict[str, Any] | None, str | None]:
    """Return the pipeline of a run, or why its messages are none; neither where there are no messages.

    Shares are of the pipeline's time in a step: without data loading, optimizer, checkpoints and collectives within a
    stage.
    """
    found = pipeline_of(run, measured)
    if not isinstance(found, Pipeline):
        return None, found
    schedule, layout = found.schedule, found.layout
    return {
        "schedule": schedule.name,
        "why_unknown": schedule.why_unknown,
        "stages": len(layout.stages),
        "copies": len(layout.chains),
        "microbatches": schedule.microbatches,
        "virtual_stages": schedule.virtual_stages,
        "steps": found.bubble.steps if found.bubble is not None else 0,
        "bubble": _bubble(found.bubble) if found.bubble is not None else None,
        "why_no_bubble": found.why_no_bubble,
        "per_stage": _per_stage(found),
        "with_more_microbatches": _foretold(found),
    }, None


def _bubble(bubble: Bubble) -> Mapping[str, float | None]:
    excess = None if bubble.formula is None else max(0.0, bubble.measured - bubble.formula)
    shares = {
        "measured": bubble.measured,
        "formula": bubble.formula,
        "excess": excess,
        "imbalance": bubble.imbalance,
        "transfers": bubble.transfers,
        "rest": bubble.rest,
    }
    return {name: None if share is None else round(share, DIGITS) for name, share in shares.items()}


def _per_stage(pipeline: Pipeline) -> list[dict[str, Any]]:
    times = pipeline.bubble.stages if pipeline.bubble is not None else [None] * len(pipeline.layout.stages)
    return [
        {
            "stage": stage,
            "ranks": list(ranks),
            "busy_seconds": None if each is None else round(each.busy_ns / SECOND_NS, 6),
            "idle_seconds": None if each is None else round(each.idle_ns / SECOND_NS, 6),
            "bubble": None if each is None else round(each.idle_share, DIGITS),
        }
        for stage, (ranks, each) in enumerate(zip(pipeline.layout.stages, times, strict=True))
    ]


def _foretold(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return what the formula says of more micro-batches; nothing where it does not hold for the schedule."""
    schedule = pipeline.schedule
    if not schedule.has_formula or schedule.microbatches is None or schedule.virtual_stages is None:
        return []
    return [
        {
            "microbatches": times * schedule.microbatches,
            "bubble": round(
                formula(len(pipeline.layout.stages), times * schedule.microbatches, schedule.virtual_stages), DIGITS
            ),
        }
        for times in MORE
    ]


def performance(run: Run, *, whole: bool = False) -> dict[str, Any]:
    """Return the pace of each rank, the shares of its time, and what these logs do not tell with the reason.

    Of logs too long for the run's frames only the newest steps count, unless the ``whole`` logs shall be gone
    through: about ten seconds for a gigabyte.

    A rank's own time is its step without what calls held it up, and without its waiting for a processor.
    """
    measured = measure(run, whole=whole)
    unknown = dict(measured.unknown)
    ranks = _ranks(measured)
    if ranks and min(row["steps"] for row in ranks) < ENOUGH_TO_COMPARE_STEPS:
        unknown["slowest"] = f"{min(row['steps'] for row in ranks)} steps are too few to compare ranks"
    tokens = [row["tokens_per_second"] for row in ranks if row["tokens_per_second"] is not None]
    if not tokens:
        unknown["tokens"] = NO_TOKENS
    what_if, not_simulated = simulations(run, measured)
    if not_simulated is not None and not_simulated not in unknown.values():
        unknown["what_if"] = not_simulated
    pipeline, no_pipeline = pipeline_in(run, measured)
    if no_pipeline is not None:
        unknown["pipeline"] = no_pipeline
    error = measured.alignment.error_ns
    return {
        "ranks": ranks,
        "groups": _groups(measured) if "shares" not in unknown else [],
        "tokens_per_second": round(sum(tokens), 1) if tokens else None,
        "slowest": None if "shares" in unknown else _slowest(measured.ledger),
        "clock_error_seconds": None if error is None else round(error / SECOND_NS, 6),
        "covers": "newest steps" if measured.newest else "all steps",
        "efficiency": efficiency_of(run, measured),
        "profiler": profiles_of(run),
        "what_if": what_if,
        "pipeline": pipeline,
        "unknown": {} if run.only_measured else unknown,
    }


def _ranks(measured: Measured) -> list[dict[str, Any]]:
    if measured.ledger.empty:
        return []
    known = "shares" not in measured.unknown
    of_rank = measured.ledger.groupby("rank")
    columns = [f"{name}_ns" for name in (*PARTS, "step", "waiting")]
    sums = of_rank[columns].sum().assign(steps=of_rank["step"].count(), own_ns=of_rank["own_ns"].mean())
    tokens = _tokens_per_second(measured.ledger)
    rows = sums.join(measured.ranks).reset_index().to_dict("records")
    return [_row(row, tokens.get(int(row["rank"])), known=known) for row in rows]


def _row(row: Mapping[Any, Any], tokens: float | None, *, known: bool) -> dict[str, Any]:
    steps, total = int(row["steps"]), max(float(row["step_ns"]), 1.0)
    parts = {
        "communication": float(row["communication_ns"] - row["waiting_ns"]) / total,
        "data": float(row["data_ns"]) / total,
        "wait": float(row["waiting_ns"]) / total,
    }
    shares = {"compute": max(0.0, 1.0 - sum(parts.values())), **parts}
    calls = int(row["of_collectives"])
    return {
        "rank": int(row["rank"]),
        "steps": steps,
        "step_seconds": _seconds(total / steps),
        "own_step_seconds": _seconds(row["own_ns"]) if known else None,
        **{f"{name}_share": round(shares[name], 4) if known else None for name in SHARES},
        "ledger": {f"{name}_seconds": _seconds(row[f"{name}_ns"] / steps) for name in PARTS} if known else None,
        "waits_suffered_seconds": _seconds(row["waiting_ns"]) if known else None,
        "waits_caused_seconds": _seconds(row["caused_ns"]) if known else None,
        "came_last_share": round(int(row["came_last"]) / calls, 4) if known and calls else None,
        "tokens_per_second": tokens,
    }


def _groups(measured: Measured) -> list[dict[str, Any]]:
    """Return what the calls of each group and op took, and the bandwidth at which they moved their bytes."""
    kinds = measured.groups
    if kinds.empty:
        return []
    members = kinds["members"].map(lambda ranks: len(ranks) if ranks is not None else 0)
    sizes = zip(kinds["op"], kinds["size_bytes"], members, strict=True)
    moved = np.array([bus_bytes(op, int(size), count) for op, size, count in sizes])
    calls = kinds["calls"].to_numpy(dtype=float)
    table = kinds.assign(
        bytes=kinds["size_bytes"].astype("float64") * calls, moved=moved * calls, took=kinds["transfer_ns"] * calls
    )
    return [_group(str(op), rows) for (_, op), rows in table.groupby(["group_key", "op"], observed=True, sort=True)]


def _group(op: str, rows: pd.DataFrame) -> dict[str, Any]:
    calls, took = int(rows["calls"].sum()), float(rows["took"].sum())
    return {
        "group": str(rows["group"].iloc[0]),
        "ranks": list(rows["members"].iloc[0] or ()),
        "op": op,
        "calls": calls,
        "bytes_per_call": round(float(rows["bytes"].sum()) / max(calls, 1)),
        "exposed_seconds": _seconds(rows["exposed_ns"].sum()),
        "wait_seconds": _seconds(rows["waiting_ns"].sum()),
        "transfer_seconds": _seconds(took / max(calls, 1)),
        "bus_gigabytes_per_second": round(float(rows["moved"].sum()) / took, 6) if took > 0 else None,
    }


def _seconds(duration_ns: float) -> float:
    return round(float(duration_ns) / SECOND_NS, 6)


def _slowest(ledger: pd.DataFrame) -> dict[str, Any] | None:
    """Return the rank with the longest own time in the middle step, if it is notably longer than the typical one."""
    if ledger.empty:
        return None
    of_rank = ledger.groupby("rank")["own_ns"]
    if len(of_rank) < 2 or int(of_rank.count().min()) < ENOUGH_TO_COMPARE_STEPS:
        return None
    own = {int(str(rank)): _seconds(middle) for rank, middle in of_rank.median().items()}
    rank = max(own, key=lambda each: (own[each], -each))
    typical = float(np.median([seconds for other, seconds in own.items() if other != rank]))
    if own[rank] < max(typical * NOTABLY_SLOWER, typical + LEAST_DIFFERENCE_SECONDS):
        return None
    return {"rank": rank, "own_step_seconds": own[rank], "typical_seconds": round(typical, 6)}


def _tokens_per_second(ledger: pd.DataFrame) -> dict[int, float]:
    known = ledger[ledger["tokens"].notna()]
    sums = known.groupby("rank")[["tokens", "step_ns"]].sum()
    pace = sums["tokens"].to_numpy(dtype=float) / np.maximum(sums["step_ns"].to_numpy(dtype=float) / SECOND_NS, 1e-9)
    return dict(zip(sums.index.tolist(), pace.round(1).tolist(), strict=True))
