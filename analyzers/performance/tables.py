"""Calls and steps of a run as tables: from its frames or, where those hold only the newest, from the whole logs."""

import json

import numpy as np
import pandas as pd

from distdiag.analyzers.performance.columns import (
    DURATIONS,
    MAIN,
    PHASES,
    PROCESSOR,
    RECEIVES,
    Tables,
    first_calls,
    kinds_of,
)
from distdiag.analyzers.performance.pairs import paired
from distdiag.analyzers.performance.tables_in_logs import tables_in_logs
from distdiag.run import Run


def tables_in_frames(run: Run) -> Tables:
    """Return the tables as far as the frames go."""
    calls = run.calls[run.calls["end_ns"].notna() & ~run.calls["failed"]]
    codes, kinds = kinds_of(calls)
    waited = (calls["clock"] != "poll").to_numpy()
    begun = np.where(waited, calls["wait_start_ns"].fillna(0), 0).astype(np.int64)
    arrival = calls["arrive_ns"].fillna(0).to_numpy(dtype=np.int64)
    start = np.maximum(calls["start_ns"].to_numpy(), arrival)
    end = calls["end_ns"].to_numpy(dtype=np.int64)
    measured = (calls["duration_ns"].notna() & calls["arrive_ns"].notna()).to_numpy()
    end = np.where(measured, start + calls["duration_ns"].fillna(0).to_numpy(dtype=np.int64), end)
    phase = calls["phase"].astype("object").map(PHASES).fillna(0).to_numpy(dtype=np.int64)
    frame = pd.DataFrame(
        {
            "rank": calls["rank"],
            "call": calls["call"],
            "group": calls["group_key"].cat.codes.astype("int64"),
            "seq": calls["seq"],
            "step": calls["step"],
            "backwards": calls["backwards"],
            "phase": phase,
            "kind": codes,
            "waited": waited,
            "p2p": calls["p2p"],
            "receives": calls["op"].isin(RECEIVES),
            "peer": calls["peer"].fillna(-1).astype("int64"),
            "own_thread": (calls["thread"] == MAIN).to_numpy() | (phase == PHASES["backward"]),
            "start_ns": start,
            "begun_ns": np.maximum(begun, start),
            "end_ns": end,
        }
    )
    return Tables(
        calls=paired(run.engine.memory(frame), max(run.ranks, default=0) + 1, messages=bool(frame["p2p"].any())),
        steps=run.engine.memory(_steps_in_frames(run.steps)),
        kinds=kinds,
        first_calls=first_calls(run.engine.memory(run.calls[["rank", "call", "step"]])),
    )


def _steps_in_frames(steps: pd.DataFrame) -> pd.DataFrame:
    known = steps[steps["start_ns"].notna() & steps["end_ns"].notna()]
    columns = ["rank", "step", "start_ns", "end_ns", *DURATIONS, *PROCESSOR]
    return known[columns].assign(facts=known["facts"].map(json.dumps).astype("object"))


def tables_of(run: Run, *, whole: bool) -> Tables:
    """Return the tables from a run's frames, or from the ``whole`` logs."""
    return tables_in_logs(run) if whole else tables_in_frames(run)
