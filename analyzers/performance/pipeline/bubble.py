"""How much of a step each stage of a pipeline stands idle, beside what its schedule costs by itself.

p stages, m micro-batches, v stages of each rank: the bubble is (p-1)/(m+p-1) of the pipeline's time for GPipe (Huang
et al. 2019, section 2.3) and 1F1B (Narayanan et al. 2021, section 2.2.1), and (p-1)/(v·m+p-1) where stages are
interleaved (there, section 2.2.2; both give it as a part of the ideal time, (p-1)/m and (p-1)/(v·m)).

Idle is what sends and receives hold a rank up, and its waiting in collectives that ranks of several stages meet in: a
stage that has finished its backwards early waits there, or for the next step's first micro-batch. That needs no clocks
but the rank's own. The pipeline's time of a step is the step without data loading, optimizer, checkpoints and other
collectives.

What is idle beyond the formula is split. With t_s the own time of stage s for one micro-batch, stages that differ take
m·max(t) + (sum of the others' t)/v instead of (m + (p-1)/v)·t: what that adds is imbalance. Where clocks can be
compared, messages whose two sides were there are exposed transfers. The rest is neither: micro-batches of different
lengths, ranks that are late by turns, loading data at the first stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers.performance import Measured
from distdiag.analyzers.performance.columns import RECEIVES
from distdiag.analyzers.performance.pipeline.schedule import Schedule
from distdiag.analyzers.performance.pipeline.stages import Layout
from distdiag.engine import Engine

if TYPE_CHECKING:
    import ibis

MESSAGES = ("send", "isend", *RECEIVES)
ACROSS, MESSAGE = 1, 2
"""Codes of collectives that ranks of several stages meet in, and of messages; 0 are all others."""
OUTSIDE = ("data", "optimizer", "checkpoint")
"""Parts of a step in which the pipeline does not run."""
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """One stage in the usual step: medians over steps and ranks, in nanoseconds."""

    ranks: tuple[int, ...]
    busy_ns: float
    idle_ns: float
    idle_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubble:
    """The bubble of a pipeline: shares of its time, means over the stages of medians over steps."""

    stages: tuple[StageTimes, ...]
    steps: int
    step_ns: float
    measured: float
    formula: float | None
    """None where the schedule is unknown, as are the three parts of what is idle beyond it."""
    imbalance: float | None
    transfers: float | None
    """None too where clocks cannot be compared."""
    rest: float | None


def formula(stages: int, microbatches: int, virtual_stages: int) -> float:
    """Return the share of a pipeline's time that its schedule leaves each stage idle."""
    return (stages - 1) / (virtual_stages * microbatches + stages - 1)


def bubble_of(engine: Engine, measured: Measured, layout: Layout, schedule: Schedule) -> Bubble | None:
    """Return the bubble of a pipeline's steps, None where no step of all its ranks was measured."""
    if measured.waits is None or measured.ledger.empty:
        return None
    times = _per_rank_and_step(engine, measured, layout)
    common = times.groupby("step")["rank"].transform("nunique") == len(layout.stage_of)
    times = times[common & (times["span_ns"] > 0)]
    if times["stage"].nunique() < len(layout.stages):
        return None
    per_stage = times.groupby("stage")[["busy_ns", "idle_ns", "transfer_ns", "share"]].median()
    shares = per_stage["share"].to_numpy(dtype=float)
    busy = per_stage["busy_ns"].to_numpy(dtype=float)
    told = measured.alignment.comparable and not measured.rolled
    moved = float((per_stage["transfer_ns"] / (per_stage["busy_ns"] + per_stage["idle_ns"])).mean()) if told else None
    found = _split(float(shares.mean()), busy, moved, schedule)
    return Bubble(
        stages=tuple(
            StageTimes(ranks=ranks, busy_ns=float(row["busy_ns"]), idle_ns=float(row["idle_ns"]), idle_share=share)
            for ranks, row, share in zip(layout.stages, per_stage.to_dict("records"), shares.tolist(), strict=True)
        ),
        steps=int(times["step"].nunique()),
        step_ns=float(times["step_ns"].median()),
        measured=float(shares.mean()),
        formula=found[0],
        imbalance=found[1],
        transfers=found[2],
        rest=found[3],
    )


def _per_rank_and_step(engine: Engine, measured: Measured, layout: Layout) -> pd.DataFrame:
    """Return rank, step, stage, step_ns, span_ns, busy_ns, idle_ns, transfer_ns and the idle share."""
    held = engine.frame(_held(engine, measured, layout))
    rows = measured.ledger.merge(held, on=["rank", "step"])
    number = {name: rows[name].to_numpy(dtype=float) for name in rows.columns if name.endswith("_ns")}
    held = number["message_ns"] + number["across_ns"]
    outside = sum(number[f"{part}_ns"] for part in OUTSIDE) + number["communication_ns"] - held
    span = np.maximum(number["step_ns"] - outside, 0.0)
    idle = np.minimum(held, span)
    return pd.DataFrame(
        {
            "rank": rows["rank"],
            "step": rows["step"],
            "stage": rows["rank"].map(layout.stage_of),
            "step_ns": rows["step_ns"],
            "span_ns": span,
            "busy_ns": span - idle,
            "idle_ns": idle,
            "transfer_ns": np.maximum(number["transfer_ns"], 0.0),
            "share": idle / np.maximum(span, 1.0),
        }
    ).dropna(subset=["stage"])


def _held(engine: Engine, measured: Measured, layout: Layout) -> ibis.Table:
    """Return per rank and step what messages and the waiting in collectives across stages held it up."""
    waits = measured.waits
    assert waits is not None
    stage_of = layout.stage_of
    codes = pd.DataFrame(
        {
            "kind": np.arange(len(measured.kinds), dtype=np.int64),
            "role": np.array(
                [_role(op, ranks, stage_of) for op, ranks in measured.kinds[["op", "members"]].to_numpy()],
                dtype=np.int64,
            ),
        }
    )
    joined = waits.join(engine.memory(codes), "kind")
    message, across = joined.role == MESSAGE, joined.role == ACROSS
    return joined.group_by("rank", "step").agg(
        message_ns=joined.exposed_ns.sum(where=message).fill_null(0).cast("float64"),
        transfer_ns=(joined.exposed_ns - joined.waiting_ns).sum(where=message).fill_null(0).cast("float64"),
        across_ns=joined.waiting_ns.sum(where=across).fill_null(0).cast("float64"),
    )


def _role(op: str, members: Sequence[int] | None, stage_of: dict[int, int]) -> int:
    across = len({stage_of.get(rank) for rank in members or ()}) > 1
    if op in MESSAGES:
        return MESSAGE if across or not members else 0  # a ring within a stage is its own work
    return ACROSS if across else 0


def _split(
    idle: float, busy_ns: Numbers, transfers: float | None, schedule: Schedule
) -> tuple[float | None, float | None, float | None, float | None]:
    """Return the formula's share, and what imbalance, transfers and the rest add to it."""
    m, v = schedule.microbatches, schedule.virtual_stages
    if not schedule.has_formula or m is None or v is None:
        return None, None, None, None
    by_itself = formula(len(busy_ns), m, v)
    left = max(0.0, idle - by_itself)
    of_microbatch = busy_ns / m
    longest = float(of_microbatch.max())
    took = m * longest + float(of_microbatch.sum() - longest) / v
    uneven = 1.0 - float(busy_ns.mean()) / took if took else by_itself
    imbalance = min(left, max(0.0, uneven - by_itself))
    left -= imbalance
    moved = None if transfers is None else min(left, transfers)
    return by_itself, imbalance, moved, left - (moved or 0.0)
