"""Calls and steps of a run as tables: from its frames or, where those hold only the newest, from the whole logs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

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
from distdiag.deferred import deferred
from distdiag.events import unfolded
from distdiag.run import Run
from distdiag.run.clocks import Clock, clocks_of

if TYPE_CHECKING:
    import ibis
else:
    ibis = deferred("ibis")

_OF_CALLS = ("call", "signature", "seq", "step", "backwards", "phase", "start_ns")
_OF_ENDS = ("end_ns", "wait_start_ns", "clock", "failed")
POLLED, WAITED, FAILED = range(3)
"""How a call ended; of several records of one end the highest counts."""
PLACES = 8
"""More than there are phases."""
_ALONE = 1 << 40
"""Keys of messages whose other side nobody knows lie beyond those of all pairs."""


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


def tables_in_logs(run: Run) -> Tables:
    """Return the tables of all records."""
    steps = run.engine.materialised(steps_in_logs(run))
    run.engine.let_go(run.files)
    signatures, kinds = _signatures_in_logs(run)
    timed = not set(kinds["device"]) <= {"cpu"}
    calls = _ended(run, timed=timed).join(run.engine.memory(signatures), ["rank", "signature"])
    start, end = calls.start_ns, calls.end_ns
    if timed:
        start = ibis.greatest(calls.start_ns, calls.arrive_ns.fill_null(0))
        measured = calls.duration_ns.notnull() & calls.arrive_ns.notnull()
        end = ibis.ifelse(measured, start + calls.duration_ns, calls.end_ns)
    begun = ibis.ifelse(calls.ending == WAITED, ibis.greatest(start, calls.wait_ns.fill_null(0)), start)
    phase = calls.place % PLACES
    table = calls.select(
        "call",
        "group",
        "seq",
        "step",
        "rank",
        "p2p",
        "receives",
        "peer",
        kind=calls.kind.cast("int32"),
        backwards=calls.place - phase,
        phase=phase.cast("int8"),
        waited=calls.ending == WAITED,
        own_thread=calls.main | (phase == PHASES["backward"]),
        start_ns=start + calls.offset_ns,
        begun_ns=begun + calls.offset_ns,
        end_ns=end + calls.offset_ns,
    )
    messages = bool(signatures["p2p"].any())
    if not messages:
        table = paired(table, 0, messages=False)
    kept = run.engine.materialised(table)
    return Tables(
        calls=paired(kept, max(run.ranks, default=0) + 1, messages=True) if messages else kept,
        steps=steps,
        kinds=kinds,
        first_calls=first_calls(kept),
    )


def steps_in_logs(run: Run) -> ibis.Table:
    """Return one row per rank and step; a second record of a step only adds facts."""
    steps = run.table("step", only=("step", "start_ns", "end_ns", *DURATIONS, *PROCESSOR, "facts"))
    steps = steps.join(run.engine.memory(_offsets(run)), "rank")
    merged = steps.group_by("rank", "step").agg(
        start_ns=steps.start_ns.min() + steps.offset_ns.min(),
        end_ns=steps.end_ns.max() + steps.offset_ns.min(),
        **{name: steps[name].max() for name in (*DURATIONS, *PROCESSOR)},
        facts=steps.facts.max(where=steps.facts != "{}"),
    )
    return merged.filter(merged.start_ns.notnull() & merged.end_ns.notnull())


def clocks_in(run: Run) -> dict[int, str]:
    """Return the name of each rank's clock: ranks with the same one share it."""
    return {rank: f"{clock.host} {clock.offset_ns}" for rank, clock in _clocks(run).items()}


def _ended(run: Run, *, timed: bool) -> ibis.Table:
    """Return one row per call that ended well, from one pass over calls and ends: rank, call and what both say of it.

    Grouping them brings both sides together and, where an end was told several times, these, too. What it costs grows
    with the columns: backwards and phase come in one (``place``), as do the ways of ending, and times of devices only
    where the run is ``timed`` by them.
    """
    times = ("arrive_ns", "duration_ns") if timed else ()
    both = run.table("call", "done", only=(*_OF_CALLS, *_OF_ENDS, *times))
    phase = both.phase.cases(*PHASES.items(), else_=0)
    both = both.mutate(
        place=both.backwards * PLACES + phase,
        ending=ibis.cases((both.failed, FAILED), (both.clock != "poll", WAITED), else_=POLLED).cast("int8"),
    )
    both = both.mutate(**{name: both[name].try_cast("int32") for name in ("rank", "signature", "step", "place")})
    calls = both.group_by("rank", "call").agg(
        **{name: both[name].max() for name in ("signature", "seq", "step", "place", "start_ns", "ending")},
        **{name: both[name].min() for name in ("end_ns", *times)},
        wait_ns=both.wait_start_ns.min(),
    )
    return calls.filter(calls.signature.notnull() & calls.end_ns.notnull() & (calls.ending != FAILED))


def _signatures_in_logs(run: Run) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return group, kind, offset of the clock and the like of each rank's signatures, and the kinds."""
    groups = run.engine.frame(run.table("group").select("rank", "group", "ranks").distinct())
    signatures = run.table("signature").select(
        "rank", "signature", "group", "op", "p2p", "size_bytes", "module", "device", "peer", "thread"
    )
    known = run.engine.frame(signatures.distinct()).merge(groups, on=["rank", "group"])
    known = known.sort_values(["rank", "signature"], kind="stable", ignore_index=True)
    known["group_key"] = known["group"] + known["ranks"]
    members = {text: _members(text) for text in known["ranks"].unique()}
    known["members"] = known["ranks"].map(members)
    codes, kinds = kinds_of(known)
    frame = pd.DataFrame(
        {
            "rank": known["rank"],
            "signature": known["signature"],
            "group": pd.factorize(known["group_key"], sort=True)[0].astype("int64"),
            "kind": codes,
            "p2p": known["p2p"].astype(bool),
            "receives": known["op"].isin(RECEIVES),
            "peer": known["peer"].fillna(-1).astype("int64"),
            "main": known["thread"] == MAIN,
        }
    ).merge(_offsets(run), on="rank")
    return frame.drop_duplicates(["rank", "signature"]), kinds


def _members(text: str) -> tuple[int, ...]:
    return tuple(json.loads(text)) if text.startswith("[") else unfolded(text)


def _clocks(run: Run) -> dict[int, Clock]:
    headers = {int(cast(Any, row).rank): cast(Any, row) for row in run.headers.itertuples()}
    return clocks_of(headers, run.ranks)


def _offsets(run: Run) -> pd.DataFrame:
    """Return what to add to each rank's monotonic clock."""
    clocks = _clocks(run)
    added = run.quality.clock_corrections_ns
    return pd.DataFrame(
        {
            "rank": np.array(run.ranks, dtype=np.int64),
            "offset_ns": np.array([clocks[r].offset_ns + added.get(r, 0) for r in run.ranks], dtype=np.int64),
        }
    )


def paired(calls: ibis.Table, world: int, *, messages: bool) -> ibis.Table:
    """Give each message the pair of its sender and receiver as group, and its number between them.

    The counter of c10d counts sends and receives of a process together, so that it differs between the two sides.
    Where there are no ``messages`` nothing has to be counted.
    """
    if not messages:
        return calls.filter(calls.own_thread).drop("peer", "receives", "own_thread")
    source = ibis.ifelse(calls.receives, calls.peer, calls["rank"])
    target = ibis.ifelse(calls.receives, calls["rank"], calls.peer)
    pair = calls.group * world * world + source * world + target + 1
    key = ibis.ifelse(calls.peer < 0, calls["rank"] + _ALONE, pair)
    calls = calls.mutate(key=ibis.ifelse(calls.p2p, -key, calls.group))
    number = ibis.row_number().over(ibis.window(group_by=["rank", "key", "p2p"], order_by="call"))
    seq = ibis.ifelse(calls.p2p, number, calls.seq)
    return calls.filter(calls.own_thread).mutate(group=calls.key, seq=seq).drop("key", "peer", "receives", "own_thread")
