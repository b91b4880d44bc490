"""Where the time of the steps goes, per rank: an observation for the report, not an accusation."""

from collections.abc import Mapping
from typing import Any

import ibis
import numpy as np
import pandas as pd

from distdiag.run import Run

WARM_UP_STEPS = 2
"""First steps import, allocate and collect garbage; they say nothing about the pace."""
ENOUGH_STEPS = 5
"""The warm-up is left out where at least as many steps stay."""
NOTABLY_SLOWER = 1.1
ENOUGH_TO_COMPARE_STEPS = 8
"""Beside the warm-up: of fewer steps one hiccup makes a rank look slow."""
LEAST_DIFFERENCE_SECONDS = 0.005
"""Ranks that share cores differ by less than this without a reason."""
TOKEN_FACTS = ("effective_tokens", "tokens", "num_tokens")
"""Names under which people tell ``distdiag.step`` how many tokens a rank trained on, best first."""
NO_STEPS = "no whole training step was recorded; steps end with an optimizer's step, or with distdiag.step()"
DEVICE_TIMES = "the host runs ahead of the device the ranks compute on, and these logs hold no device times"
NO_TOKENS = "tokens were not recorded: say distdiag.step(tokens=...), padding left out"
SECOND_NS = 1e9


def performance(run: Run, *, whole: bool = False) -> dict[str, Any]:
    """Return the pace of each rank, the shares of its time, and what these logs do not tell with the reason.

    Of logs too long for the run's frames only the newest steps count, unless the ``whole`` logs shall be gone
    through: about ten seconds for a gigabyte.

    A step is data, computing, communication (what its calls take when nobody is late) and waiting (what they
    take longer than on the rank that came last). A rank's own time is its step without the waiting.
    """
    unknown: dict[str, str] = {}
    if (run.calls["device"] != "cpu").any():
        unknown["shares"] = DEVICE_TIMES
    newest = run.quality.window_bytes is not None and not whole
    measured = _measured(run, whole=whole)
    if measured.empty:
        unknown["steps"] = NO_STEPS
    elif measured["steps"].min() < ENOUGH_TO_COMPARE_STEPS:
        unknown["slowest"] = f"{int(measured['steps'].min())} steps are too few to compare ranks"
    tokens = _tokens_per_second(run.steps)
    if not tokens:
        unknown["tokens"] = NO_TOKENS
    ranks = {int(row["rank"]): _row(row, tokens, known="shares" not in unknown) for row in measured.to_dict("records")}
    return {
        "ranks": ranks,
        "slowest": None if "shares" in unknown else _slowest(ranks),
        "covers": "newest steps" if newest else "all steps",
        "unknown": unknown,
    }


def _measured(run: Run, *, whole: bool) -> pd.DataFrame:
    """Return a row per rank: its steps, their mean, and the sums of their parts in nanoseconds."""
    in_frames = run.quality.window_bytes is None or not whole
    if in_frames and not run.steps["end_ns"].notna().any():
        return pd.DataFrame()
    calls, steps = _in_frames(run) if in_frames else _in_logs(run)
    first = calls.group_by("rank").agg(call=calls.call.min(), step=calls.step.argmin(calls.call))
    # Where the first calls are lost, the steps up to the first that is known have lost some too.
    lost = first.filter(first.call > 1).select("rank", lost=first.step)
    steps = steps.left_join(lost, "rank").drop("rank_right")
    steps = steps.filter(steps.lost.isnull() | (steps.step > steps.lost))
    of_rank = ibis.window(group_by="rank", order_by="step")
    warm = steps.mutate(
        position=ibis.row_number().over(of_rank), steps=steps.step.count().over(ibis.window(group_by="rank"))
    )
    kept = warm.filter((warm.position >= WARM_UP_STEPS) | (warm.steps < WARM_UP_STEPS + ENOUGH_STEPS))
    parts = _with_parts(kept, _by_step(calls))
    return run.engine.frame(
        parts.group_by("rank")
        .agg(
            steps=parts.count(),
            step_ns=parts.step_ns.mean(),
            own_ns=(parts.step_ns - parts.waiting_ns).median(),
            total_ns=parts.step_ns.sum(),
            data_ns=parts.data_ns.sum(),
            waiting_ns=parts.waiting_ns.sum(),
            communication_ns=parts.communication_ns.sum(),
        )
        .order_by("rank")
    )


def _by_step(calls: ibis.Table) -> ibis.Table:
    """Return per rank and step what its calls took at the least, and what they took longer."""
    shared = calls.filter(~calls.p2p)
    least = shared.group_by("group", "seq").agg(least_ns=shared.blocked_ns.min())
    joined = calls.left_join(least, ["group", "seq"]).drop("group_right", "seq_right")
    joined = joined.mutate(least_ns=ibis.ifelse(joined.p2p, joined.blocked_ns, joined.least_ns))
    excess = joined.blocked_ns - joined.least_ns
    polled = ~joined.waited
    # Calls that nobody waits for overlap one another: what makes one late makes all late, so the longest counts.
    return joined.group_by("rank", "step").agg(
        waiting_ns=excess.sum(where=joined.waited).fill_null(0) + excess.max(where=polled).fill_null(0),
        communication_ns=joined.least_ns.sum(where=joined.waited).fill_null(0)
        + joined.least_ns.max(where=polled).fill_null(0),
    )


def _with_parts(steps: ibis.Table, calls: ibis.Table) -> ibis.Table:
    joined = steps.left_join(calls, ["rank", "step"]).drop("rank_right", "step_right")
    joined = joined.mutate(data_ns=joined.data_ns.fill_null(0))
    busy = joined.step_ns - joined.data_ns
    waiting = ibis.least(joined.waiting_ns.fill_null(0), busy)
    joined = joined.mutate(waiting_ns=waiting)
    return joined.mutate(communication_ns=ibis.least(joined.communication_ns.fill_null(0), busy - joined.waiting_ns))


def _in_frames(run: Run) -> tuple[ibis.Table, ibis.Table]:
    """Return calls and steps from the frames."""
    calls = run.calls[run.calls["end_ns"].notna() & ~run.calls["failed"]]
    waited = (calls["clock"] == "wait").to_numpy()
    start = np.where(waited, calls["wait_start_ns"].fillna(0), 0)
    begun = np.maximum(start.astype(np.int64), calls["start_ns"].to_numpy())
    table = pd.DataFrame(
        {
            "rank": calls["rank"],
            "call": calls["call"],
            "group": calls["group_key"].cat.codes.astype("int64"),
            "seq": calls["seq"],
            "step": calls["step"],
            "p2p": calls["p2p"],
            "waited": waited,
            "blocked_ns": calls["end_ns"].astype("int64") - begun,
        }
    )
    steps = run.steps[run.steps["start_ns"].notna() & run.steps["end_ns"].notna()]
    pace = pd.DataFrame(
        {
            "rank": steps["rank"],
            "step": steps["step"],
            "step_ns": (steps["end_ns"] - steps["start_ns"]).astype("int64"),
            "data_ns": steps["data_ns"],
        }
    )
    return run.engine.memory(table), run.engine.memory(pace)


def _in_logs(run: Run) -> tuple[ibis.Table, ibis.Table]:
    """Return calls and steps from the logs themselves, of which the frames hold only the newest."""
    groups = run.table("group").select("rank", "group", "ranks").distinct()
    groups = groups.mutate(key=(groups.group + groups.ranks).hash())
    signatures = run.table("signature").join(groups, ["rank", "group"]).select("rank", "signature", "key", "p2p")
    done = run.table("done")
    done = done.group_by("rank", "call").agg(
        end_ns=done.end_ns.min(),
        wait_ns=done.wait_start_ns.min(),
        waited=(done.clock == "wait").any(),
        failed=done.failed.any(),
    )
    calls = run.table("call").join(done.filter(~done.failed), ["rank", "call"])
    calls = calls.join(signatures.distinct(), ["rank", "signature"])
    begun = ibis.ifelse(calls.waited & calls.wait_ns.notnull(), calls.wait_ns, calls.start_ns)
    table = calls.select(
        "rank", "call", "seq", "step", "p2p", "waited", group=calls.key, blocked_ns=calls.end_ns - begun
    )
    steps = run.table("step")
    steps = steps.filter(steps.end_ns.notnull() & steps.start_ns.notnull())
    return run.engine.materialised(table), steps.select(
        "rank", "step", "data_ns", step_ns=steps.end_ns - steps.start_ns
    )


def _row(row: Mapping[Any, Any], tokens: Mapping[int, float], *, known: bool) -> dict[str, Any]:
    total = max(float(row["total_ns"]), 1.0)
    parts = {name: float(row[f"{name}_ns"]) / total for name in ("data", "communication", "waiting")}
    shares = {"computing": max(0.0, 1.0 - sum(parts.values())), **parts}
    return {
        "steps": int(row["steps"]),
        "mean_step_seconds": round(float(row["step_ns"]) / SECOND_NS, 6),
        "own_step_seconds": round(float(row["own_ns"]) / SECOND_NS, 6) if known else None,
        "shares": {name: round(share, 4) for name, share in shares.items()} if known else None,
        "tokens_per_second": tokens.get(int(row["rank"])),
    }


def _slowest(ranks: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the rank with the longest own time, if it is notably longer than the typical one."""
    if len(ranks) < 2 or min(row["steps"] for row in ranks.values()) < ENOUGH_TO_COMPARE_STEPS:
        return None
    own = {rank: float(row["own_step_seconds"]) for rank, row in ranks.items()}
    rank = max(own, key=lambda each: (own[each], -each))
    typical = float(np.median([seconds for other, seconds in own.items() if other != rank]))
    if own[rank] < max(typical * NOTABLY_SLOWER, typical + LEAST_DIFFERENCE_SECONDS):
        return None
    return {"rank": rank, "own_step_seconds": own[rank], "typical_seconds": round(typical, 6)}


def _tokens_per_second(steps: pd.DataFrame) -> dict[int, float]:
    told = steps["facts"].map(_tokens)
    known = steps[told.notna() & steps["start_ns"].notna() & steps["end_ns"].notna()]
    if known.empty:
        return {}
    seconds = (known["end_ns"] - known["start_ns"]).astype("float64") / SECOND_NS
    sums = pd.DataFrame({"rank": known["rank"], "tokens": told[known.index].astype("float64"), "seconds": seconds})
    sums = sums.groupby("rank").sum()
    pace = sums["tokens"].to_numpy(dtype=float) / np.maximum(sums["seconds"].to_numpy(dtype=float), 1e-9)
    return dict(zip(sums.index.tolist(), pace.round(1).tolist(), strict=True))


def _tokens(facts: Mapping[str, Any]) -> float | None:
    for name in TOKEN_FACTS:
        value = facts.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None
