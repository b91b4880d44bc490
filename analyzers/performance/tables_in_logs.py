"""The tables of a run from its whole logs, where its frames hold only the newest records."""

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
from distdiag.analyzers.performance.pairs import paired
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
        "kind",
        "p2p",
        "receives",
        "peer",
        rank=calls["rank"].cast("int32"),
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
