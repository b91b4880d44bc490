"""Waiting from the sums that every step keeps, for long runs with so many calls a step that single ones are dear.

A step's record holds, by group and op, the calls that ended in it, their bytes and what they took. What a rank's sum
exceeds the least one of all members by is waiting; the rank with the least came last. That is the rule of single calls,
applied to their sum: waiting that two ranks do for one another within a step cancels out, so it is a lower bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from distdiag.analyzers.performance.columns import PHASES
from distdiag.analyzers.performance.waits import first_of_least
from distdiag.deferred import deferred
from distdiag.run import Run
from distdiag.run.identity import Interned, group_key

if TYPE_CHECKING:
    import ibis
else:
    ibis = deferred("ibis")

MANY_CALLS = 100
"""Calls of a rank in a step, from which on their sums answer."""
_SUMS = "map<string, struct<calls: int64, bytes: int64, duration_ns: int64, wait_ns: int64>>"


def calls_per_step(run: Run) -> float:
    """Return how many calls a rank typically issues in a step, from the numbers that steps ended at."""
    steps = run.steps[run.steps["calls"].notna()]
    if steps.empty:
        return 0.0
    issued = steps.groupby("rank")["calls"].agg(["min", "max"])
    made = steps.groupby("rank")["step"].agg(["min", "max"])
    return float(((issued["max"] - issued["min"]) / (made["max"] - made["min"]).clip(lower=1)).median())


def rolled_waits(run: Run, steps: ibis.Table) -> tuple[ibis.Table, pd.DataFrame]:
    """Return what ``waits_of`` returns, a row for all calls of one rank, step, group and op, and the kinds.

    ``calls`` says of how many calls a row is; ``seq`` is the step; times are sums, ``transfer_ns`` of one call.
    """
    recorded = run.table("step")
    recorded = recorded.filter(recorded.rollups.notnull())
    sums = recorded.select("rank", "step", sums=run.engine.parsed(recorded.rollups, _SUMS))
    each = sums.mutate(key=sums.sums.keys().unnest())
    each = each.select("rank", "step", "key", value=each.sums[each.key])
    # Where Python waited, the wait is what held the rank up; C++ waits without being seen, all the time.
    held_ns = ibis.ifelse(each.value["wait_ns"] > 0, each.value["wait_ns"], each.value["duration_ns"])
    each = each.select("rank", "step", "key", calls=each.value["calls"], bytes=each.value["bytes"], exposed_ns=held_ns)
    codes, kinds = _kinds(run, each)
    found = each.join(run.engine.memory(codes), ["rank", "key"])
    found = found.join(steps.select("rank", "step", "start_ns", "end_ns"), ["rank", "step"])
    found = found.mutate(exposed_ns=ibis.least(found.exposed_ns, found.end_ns - found.start_ns))
    last = first_of_least(found["rank"], found.exposed_ns)
    shared = found.group_by("kind", "step").agg(
        members=found.count(),
        least_ns=found.exposed_ns.min(),
        last_rank=last,
    )
    joined = found.join(shared, ["kind", "step"])
    waits = joined.select(
        "rank",
        "step",
        "kind",
        "calls",
        "members",
        "last_rank",
        "exposed_ns",
        group=joined.kind,
        seq=joined.step,
        phase=ibis.literal(0, type="int64"),
        waiting_ns=joined.exposed_ns - joined.least_ns,
        transfer_ns=(joined.least_ns / joined.calls).round().cast("int64"),
    )
    return waits, kinds


def spread(held: ibis.Table, steps: ibis.Table) -> ibis.Table:
    """Lay communication whose phase nobody knows on forward and backward, in proportion to their lengths."""
    joined = held.join(steps.select("rank", "step", "forward_ns", "backward_ns"), ["rank", "step"])
    both = ibis.greatest(joined.forward_ns.fill_null(0) + joined.backward_ns.fill_null(0), 1)
    parts = {
        f"in_{name}_ns": (joined.communication_ns * (joined[f"{name}_ns"].fill_null(0) / both)).round().cast("int64")
        if name in ("forward", "backward")
        else ibis.literal(0, type="int64")
        for name in PHASES
    }
    return joined.mutate(**parts).drop("forward_ns", "backward_ns")


def _kinds(run: Run, each: ibis.Table) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the code of each rank's ``group/op``, and what the codes stand for."""
    of_ranks = each.group_by("rank", "key").agg(calls=each.calls.sum(), bytes=each.bytes.sum())
    totals = run.engine.frame(of_ranks)
    totals[["group", "op"]] = totals["key"].str.rsplit("/", n=1, expand=True)
    number = Interned().number
    groups = run.groups.assign(number=run.groups["ranks"].map(number)).drop_duplicates(["rank", "group"], keep="last")
    known = totals.merge(groups[["rank", "group", "ranks", "number"]], on=["rank", "group"], how="inner")
    known = known.sort_values(["rank", "key"], kind="stable", ignore_index=True)
    known["kind"] = known.groupby(["group", "number", "op"], sort=True).ngroup().astype("int64")
    kinds = known.groupby("kind").agg(
        group=("group", "first"), members=("ranks", "first"), op=("op", "first"), calls=("calls", "sum"),
        bytes=("bytes", "sum"),
    )  # fmt: skip
    kinds["size_bytes"] = (kinds["bytes"] // kinds["calls"].clip(lower=1)).astype("int64")
    kinds["group_key"] = [group_key(g, m) for g, m in zip(kinds["group"], kinds["members"], strict=True)]
    columns = ["group_key", "group", "op", "size_bytes", "members"]
    return known[["rank", "key", "kind"]], kinds[columns].assign(module="", device="cpu")
