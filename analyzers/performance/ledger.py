"""The step ledger: what each rank did with each of its steps, in parts that exclude one another and add up to it.

Records beside calls tell what held single ranks up in single steps, and how many tokens their batches held.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from distdiag.analyzers.performance.columns import LENGTH_FACTS, PHASES, TOKEN_FACTS
from distdiag.deferred import deferred
from distdiag.engine import Engine
from distdiag.run import Run

if TYPE_CHECKING:
    import ibis
else:
    ibis = deferred("ibis")

WARM_UP_STEPS = 2
"""First steps import, allocate and collect garbage; they say nothing about the pace."""
ENOUGH_STEPS = 5
"""The warm-up is left out where at least as many steps stay."""
PARTS = ("data", "forward", "backward", "optimizer", "checkpoint", "other", "communication")
"""They add up to a step; communication is what no computing hides, waiting included."""
CHECKPOINT = re.compile(r"checkpoint|\bsav(e|ing)\b|ckpt", re.IGNORECASE)
"""Phases of the user, or of hooks, in which a rank writes or reads a checkpoint."""
MAIN = "MainThread"
KEYS = ["rank", "step"]
COLUMNS = {"tokens": "batch_tokens", "tokens_squared": "batch_tokens_squared"}


def held_in(waits: ibis.Table) -> ibis.Table:
    """Return per rank and step what its calls held it up, and in which phase."""
    return waits.group_by("rank", "step").agg(
        waiting_ns=waits.waiting_ns.sum(),
        communication_ns=waits.exposed_ns.sum(),
        **{f"in_{name}_ns": waits.exposed_ns.sum(where=waits.phase == code) for name, code in PHASES.items()},
    )


def ledger_of(
    engine: Engine, steps: ibis.Table, held: ibis.Table, pauses: pd.DataFrame, batches: pd.DataFrame
) -> pd.DataFrame:
    """Return a row per rank and step, in nanoseconds: step_ns, start_ns, a column ``<part>_ns`` for each of ``PARTS``,
    waiting_ns, own_ns (the step without communication, and without waiting for a processor where that is known),
    cpu_ns, queued_ns, pauses of the rank, tokens, length and length_squared.

    ``held`` is what ``held_in`` returns; ``pauses`` and ``batches`` have a row per rank and step that had any.
    """
    kept = _warm(steps)
    joined = kept.left_join(held, ["rank", "step"]).drop("rank_right", "step_right")
    frame = engine.frame(joined.order_by("rank", "step"))
    return _exclusive(_with_batches(_with(_with(frame, pauses), batches)))


def _with(frame: pd.DataFrame, more: pd.DataFrame) -> pd.DataFrame:
    """Add what only some ranks and steps have; a merge with nothing would still look all keys up."""
    if more.empty:
        return frame.assign(**{name: np.nan for name in more.columns if name not in ("rank", "step")})
    return frame.merge(more, on=["rank", "step"], how="left")


def _with_batches(frame: pd.DataFrame) -> pd.DataFrame:
    """Let the batches say what the user did not: tokens without padding, and the squares of lengths."""
    counted = frame["tokens"].isna() & frame["length"].isna()
    told = {
        "tokens": frame["tokens"].fillna(frame["length"]).fillna(frame["batch_tokens"]),
        "length": frame["length"].where(~counted, frame["batch_tokens"]),
        "length_squared": frame["length_squared"].where(~counted, frame["batch_tokens_squared"]),
    }
    return frame.assign(**told).drop(columns=["batch_tokens", "batch_tokens_squared"])


def _warm(steps: ibis.Table) -> ibis.Table:
    """Return the steps after the warm-up, with what the facts say of tokens."""
    position = ibis.row_number().over(ibis.window(group_by="rank", order_by="step"))
    count = steps.step.count().over(ibis.window(group_by="rank"))
    steps = steps.mutate(position=position, known_steps=count, **_told(steps.facts))
    kept = steps.filter((steps.position >= WARM_UP_STEPS) | (steps.known_steps < WARM_UP_STEPS + ENOUGH_STEPS))
    return kept.drop("position", "known_steps", "facts")


def _told(facts: ibis.Value) -> dict[str, ibis.Value]:
    """Return the numbers of tokens that facts tell, and the sums of lengths and of their squares."""
    said = facts.cast("json")
    tokens = ibis.coalesce(*(said[name].try_cast("float64") for name in TOKEN_FACTS))
    lengths = ibis.coalesce(*(said[name].try_cast("array<float64>") for name in LENGTH_FACTS))
    return {"tokens": tokens, "length": lengths.sums(), "length_squared": lengths.map(lambda each: each * each).sums()}


def _exclusive(frame: pd.DataFrame) -> pd.DataFrame:
    """Take communication and pauses out of the parts they fall into."""
    told = {"tokens", "length", "length_squared", "cpu_ns", "queued_ns"}
    frame = frame.fillna({name: 0 for name in frame.columns if name not in told}).astype(
        {"cpu_ns": "float64", "queued_ns": "float64"}
    )
    step = (frame["end_ns"] - frame["start_ns"]).astype("float64")
    raw = {name: frame[f"{name}_ns"].astype("float64") for name in PHASES}
    held = {name: np.minimum(frame[f"in_{name}_ns"].astype("float64"), raw[name]) for name in PHASES}
    in_parts = sum(held.values(), step * 0)
    between = (step - sum(raw.values(), step * 0)).clip(lower=0)
    elsewhere = np.minimum((frame["communication_ns"] - in_parts).clip(lower=0), between)
    checkpoint = np.minimum(frame["checkpoint_ns"].astype("float64"), between - elsewhere)
    communication = in_parts + elsewhere
    columns = {f"{name}_ns": raw[name] - held[name] for name in PHASES} | {
        "step_ns": step,
        "checkpoint_ns": checkpoint,
        "other_ns": between - elsewhere - checkpoint,
        "communication_ns": communication,
        "waiting_ns": np.minimum(frame["waiting_ns"].astype("float64"), communication),
        "own_ns": np.maximum(step - communication - frame["queued_ns"].fillna(0.0), 0.0),
    }
    return frame.drop(columns=[f"in_{name}_ns" for name in PHASES]).assign(**columns)


def pauses_of(run: Run, *, whole: bool) -> pd.DataFrame:
    """Return a row per rank and step with a pause: checkpoint_ns, gc_ns, gc_pauses, longest_gc_ns, compile_ns."""
    compiles = _records(run, "compile", whole)
    collections = _outside(_records(run, "gc", whole), compiles)
    found = [
        _checkpoints(_records(run, "phase", whole)),
        collections.groupby(KEYS)["duration_ns"].agg(gc_ns="sum", gc_pauses="count", longest_gc_ns="max"),
        compiles.groupby(KEYS)["duration_ns"].agg(compile_ns="sum", compiles="count"),
    ]
    return pd.concat(found, axis=1).fillna(0.0).astype("float64").rename_axis(KEYS).reset_index()


def _records(run: Run, kind: str, whole: bool) -> pd.DataFrame:
    frames = {"gc": run.gc, "compile": run.compiles, "phase": run.phases}
    return run.engine.frame(run.table(kind)) if whole else frames[kind]


def _outside(collections: pd.DataFrame, compiles: pd.DataFrame) -> pd.DataFrame:
    """Return the collections that no compilation holds: what it leaves behind is part of its price."""
    if collections.empty or compiles.empty:
        return collections
    compiled = compiles[["rank", "time_ns"]].assign(compiled_ns=compiles["time_ns"] + compiles["duration_ns"])
    both = pd.merge_asof(collections.sort_values("time_ns"), compiled.sort_values("time_ns"), on="time_ns", by="rank")
    return both[~(both["compiled_ns"] > both["time_ns"])].drop(columns="compiled_ns")


def _checkpoints(phases: pd.DataFrame) -> pd.DataFrame:
    """Return the time each rank spent in phases of checkpoints, the outermost of nested ones alone."""
    named = phases[phases["phase"].map(lambda name: bool(CHECKPOINT.search(name))).astype(bool)]
    named = named[named["thread"] == MAIN]
    begins, ends = named[named["edge"] == "begin"], named[named["edge"] == "end"]
    both = begins.merge(ends[["rank", "number", "time_ns"]], on=["rank", "number"], suffixes=("", "_end"))
    both = both.sort_values(["rank", "time_ns"], kind="stable", ignore_index=True)
    before = both.groupby("rank")["time_ns_end"].cummax().groupby(both["rank"]).shift()
    outermost = both[~(before > both["time_ns"])]
    spent = outermost.assign(checkpoint_ns=outermost["time_ns_end"] - outermost["time_ns"])
    return spent.groupby(KEYS)[["checkpoint_ns"]].sum()


def batches_of(run: Run, *, whole: bool) -> pd.DataFrame:
    """Return a row per rank and step with counted batches: batch_tokens, padding left out, and batch_tokens_squared.

    The second is the sum over samples of the squares of their tokens.
    """
    if whole:
        table = run.table("batch").filter(lambda batch: batch.tokens.notnull())
        sums = table.group_by("rank", "step").agg(**{name: table[name].sum() for name in COLUMNS})
        return run.engine.frame(sums).rename(columns=COLUMNS).astype("float64")
    counted = run.batches[run.batches["tokens"].notna()]
    return (
        counted.groupby(["rank", "step"])[list(COLUMNS)].sum().rename(columns=COLUMNS).astype("float64").reset_index()
    )
