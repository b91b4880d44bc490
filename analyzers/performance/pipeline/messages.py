"""How many messages each rank exchanges with each other one in a step, and in which order: what tells a schedule.

Only the order in which a rank issued its own calls is used, so neither clocks nor device times matter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from distdiag.analyzers.performance.columns import RECEIVES
from distdiag.deferred import deferred
from distdiag.run import Run

if TYPE_CHECKING:
    import ibis
else:
    ibis = deferred("ibis")

Pair = tuple[int, int]
"""A rank, and the one it exchanges messages with."""
WHOLE_NUMBERS = ("int", "uint", "bool", "long", "byte", "char", "short")
"""Types of messages that tell shapes or flags: activations and gradients are no whole numbers."""
USUAL = 0.5
"""Share of a rank's steps in which a pair has to exchange messages; what is rarer is no part of the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What a rank exchanges with one peer in its usual step."""

    sends: int
    receives: int
    sends_first: int
    """Sends issued before the first receive from this peer."""
    receives_first: int
    """Receives issued before the first send to this peer."""
    sends_before: int
    """Sends issued before the first backward of the step."""
    receives_before: int
    agreeing: float
    """Share of the rank's steps that have just so many messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """The exchanges of a run's usual training step."""

    exchanges: Mapping[Pair, Exchange]
    backwards: Mapping[int, int]
    """Whole backwards of each rank in a step; 0 where none was seen."""
    forwards: int = 0
    """Most root forwards of a rank in a step; 0 where none was seen."""
    steps: int


def messages_of(run: Run, groups: Collection[str] | None = None) -> Messages:
    """Return what ranks exchange in their usual training step; nothing where no whole step has messages.

    With ``groups``, keys of process groups, only what they exchange in these.
    """
    steps = _training_steps(run)
    if steps.empty:
        return Messages(exchanges={}, backwards={}, steps=0)
    rows = _rows(run, groups).merge(steps[["rank", "step"]], on=["rank", "step"])
    if rows["step"].nunique() > 1:  # the first step also exchanges shapes, and may have lost its first calls
        rows = rows[rows["step"] > rows["step"].min()]
    if rows.empty:
        return Messages(exchanges={}, backwards={}, steps=0)
    usual = run.engine.frame(_usual(run.engine.materialised(_per_step(run.engine.memory(rows)))))
    exchanges = {
        (int(row["rank"]), int(row["peer"])): Exchange(
            **{name: int(row[name]) for name in _COUNTS}, agreeing=float(row["agreeing"])
        )
        for row in usual.to_dict("records")
        if row["often"] >= USUAL
    }
    backwards = steps.groupby("rank")["backwards"].median()
    return Messages(
        exchanges=exchanges,
        backwards={int(rank): int(count) for rank, count in zip(backwards.index, backwards, strict=True)},
        forwards=int(steps.groupby("rank")["forwards"].median().max()),
        steps=int(rows["step"].nunique()),
    )


_COUNTS = ("sends", "receives", "sends_first", "receives_first", "sends_before", "receives_before")


def _training_steps(run: Run) -> pd.DataFrame:
    """Return rank, step and backwards of whole steps; of ranks whose backwards are seen, those that have some."""
    steps = run.steps.loc[run.steps["end_ns"].notna(), ["rank", "step", "backwards", "forwards"]]
    steps = steps.assign(**{name: steps[name].fillna(0).astype("int64") for name in ("backwards", "forwards")})
    trained = steps["backwards"] > 0
    seen = trained.groupby(steps["rank"]).transform("any")  # a stage whose backwards are split counts none
    return steps[trained | ~seen]


def _rows(run: Run, groups: Collection[str] | None) -> pd.DataFrame:
    """Return one row per message of a known peer."""
    known = run.calls["p2p"] & run.calls["peer"].notna() & ~run.calls["failed"]
    if groups is not None:
        known &= run.calls["group_key"].isin(groups)
    calls = run.calls[known.to_numpy()]
    names = {name: not str(name).lower().startswith(WHOLE_NUMBERS) for name in calls["dtype"].unique()}
    told = calls["dtype"].map(names).astype(bool).to_numpy()
    calls = calls[told] if told.any() else calls
    return pd.DataFrame(
        {
            "rank": calls["rank"].to_numpy(dtype="int64"),
            "step": calls["step"].to_numpy(dtype="int64"),
            "call": calls["call"].to_numpy(dtype="int64"),
            "peer": calls["peer"].to_numpy(dtype="int64"),
            "receives": calls["op"].isin(RECEIVES).to_numpy(dtype=bool),
            "before": (calls["backwards"] == 0).to_numpy(dtype=bool),
        }
    )


def _per_step(rows: ibis.Table) -> ibis.Table:
    """Return the counts of each rank, peer and step."""
    of_pair = ibis.window(group_by=["rank", "step", "peer"])
    rows = rows.mutate(
        first_receive=rows.call.min(where=rows.receives).over(of_pair).fill_null(_NEVER),
        first_send=rows.call.min(where=~rows.receives).over(of_pair).fill_null(_NEVER),
    )
    sends, receives = ~rows.receives, rows.receives
    return rows.group_by("rank", "step", "peer").agg(
        sends=sends.sum(),
        receives=receives.sum(),
        sends_first=(sends & (rows.call < rows.first_receive)).sum(),
        receives_first=(receives & (rows.call < rows.first_send)).sum(),
        sends_before=(sends & rows.before).sum(),
        receives_before=(receives & rows.before).sum(),
    )


_NEVER = (1 << 63) - 1


def _usual(each: ibis.Table) -> ibis.Table:
    """Return what is usual over the steps, by rank and peer."""
    steps = each.group_by("rank").agg(of_rank=each.step.nunique())
    usual = each.group_by("rank", "peer").agg(found=each.count(), **{name: each[name].mode() for name in _COUNTS})
    agreed = each.join(usual, ["rank", "peer", "sends", "receives"]).group_by("rank", "peer").agg(same=ibis._.count())
    joined = usual.join(steps, "rank").join(agreed, ["rank", "peer"])
    return joined.mutate(often=joined.found / joined.of_rank, agreeing=joined.same / joined.of_rank)
