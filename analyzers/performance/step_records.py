"""What records beside calls tell of steps: what held single ranks up, and how many tokens their batches held."""

import re

import pandas as pd

from distdiag.run import Run

CHECKPOINT = re.compile(r"checkpoint|\bsav(e|ing)\b|ckpt", re.IGNORECASE)
"""Phases of the user, or of hooks, in which a rank writes or reads a checkpoint."""
MAIN = "MainThread"
KEYS = ["rank", "step"]
COLUMNS = {"tokens": "batch_tokens", "tokens_squared": "batch_tokens_squared"}


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
