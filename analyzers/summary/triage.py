"""The questions that people who hunt such failures ask, in their order, with what these logs answer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from distdiag.analyzers._wording import counted, named, seconds, verb
from distdiag.analyzers.investigation.deaths import ENDED
from distdiag.analyzers.investigation.issued import group_name, in_group
from distdiag.analyzers.investigation.lives import CONNECTION, TIMEOUT
from distdiag.analyzers.investigation.paths import location, short
from distdiag.analyzers.investigation.sources import tells_steps, unheard
from distdiag.analyzers.summary.performance import performance
from distdiag.analyzers.summary.positions import newest_ns, positions
from distdiag.events import NUMBER_UNKNOWN, UNSIGNED
from distdiag.findings import Position, Verdict
from distdiag.run import Run

POSITION = "Last step and collective of each rank"
EARLIER = "An earlier out-of-memory, NaN or data fault anywhere"
SMALLER = "How to reproduce it smaller"
ORDER = "Order of collectives"
SHARES = "Computing, communication, data, waiting"
PACE = "Effective tokens and the slowest rank"

HEALTHY = "healthy"
MOST_GROUPS = 4
"""Places and faults said one by one; more than that is no longer an answer."""
FEWEST_RANKS = 2
SEQ_BITS = 40
"""Left to the number of a collective in a key of group and number."""
MUST_BE_FINITE = ("loss", "grad_norm")
ORDERED = ("rank", "group_key", "group", "members", "seq", "agree", "start_ns", "op", "dtype", "numel", "path")
"""What of a call the comparison of orders looks at."""


def triage(
    run: Run,
    verdict: Verdict,
    measured: Mapping[str, Any] | None = None,
    places: Sequence[Position] | None = None,
) -> dict[str, str]:
    """Return question and answer, in the order in which they are asked.

    ``measured`` and ``places`` are what ``performance`` and ``positions`` returned, for callers that have it already.
    """
    if run.only_measured:
        return {}  # the questions are asked of logs
    measured = performance(run) if measured is None else measured
    return {
        POSITION: _positions(positions(run) if places is None else places),
        EARLIER: _earlier(run),
        SMALLER: _smaller(run, verdict),
        ORDER: _order(run, verdict),
        SHARES: _shares(measured),
        PACE: _pace(measured),
    }


def _positions(found: Sequence[Position]) -> str:
    alike: dict[tuple[int | None, str | None], list[int]] = {}
    for position in found:
        alike.setdefault((position.step, position.last), []).append(position.rank)
    parts = []
    for (step, last), ranks in list(alike.items())[:MOST_GROUPS]:
        place = f"step {step}" if step is not None else "no step"
        completed = f"completed {last}" if last else "completed no call"
        parts.append(f"{named(ranks)}: {place}, {completed}")
    if len(alike) > MOST_GROUPS:
        parts.append(f"{len(alike) - MOST_GROUPS} more places")
    return "; ".join(parts) or "these texts name no rank"


def _earlier(run: Run) -> str:
    end_ns = newest_ns(run)
    said = [_fault(row, run, end_ns) for row in _own_faults(run.faults)]
    said += _not_finite(run)
    more = len(said) - MOST_GROUPS
    text = "; ".join(said[:MOST_GROUPS]) + (f"; and {more} more" if more > 0 else "")
    if not text:
        text = "no out-of-memory error and no exception but those of failed waits was recorded"
        if run.quality.window_bytes is not None:
            text += f" in the newest {run.quality.window_bytes >> 10} KiB of each rank, which is what was read"
    if not _losses(run):
        text += "; losses were not recorded, so NaN cannot be told: say distdiag.step(loss=...)"
    if run.missing:
        text += f"; the logs of {named(run.missing)} are missing"
    return text


def _own_faults(faults: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the exceptions that are no consequence of what another rank did, the first one first."""
    raised = faults[faults["fault"] != "exit"].sort_values(["time_ns", "rank"])
    rows = []
    seen: set[tuple[int, str, str]] = set()
    for row in raised.to_dict("records"):
        text = f"{row['type']}: {row['message']}"
        consequence = row["fault"] == "exception" and (TIMEOUT.search(text) or CONNECTION.search(text))
        identity = (int(row["rank"]), str(row["type"]), str(row["message"]))
        if not consequence and identity not in seen:
            seen.add(identity)
            rows.append(row)
    return rows


def _fault(row: Mapping[Any, Any], run: Run, end_ns: int) -> str:
    nobody = row["where"] == UNSIGNED or int(row["rank"]) in unheard(run)
    who = "a rank that nothing names" if nobody else f"rank {row['rank']}"
    if row["fault"] == "warning":
        return str(row["message"]) if nobody else f"{who}: {row['message']}"
    what = "ran out of memory" if row["fault"] == "out-of-memory" else f"raised {row['type']}"
    if row["fault"] == ENDED:
        what = f"ended with {row['type'] or 'exit code ' + str(int(row['code']))}"
    frames = row["frames"] or (run.paths.get(int(row["path"]), ()) if not pd.isna(row["path"]) else ())
    site = f" at {short(location(frames[-1]))}" if frames else ""
    before = seconds(end_ns - int(row["time_ns"]))
    step = f" in step {row['step']}" if tells_steps(run) else ""
    return f"{who} {what}{step}{site}, {before} before the last record"


def _losses(run: Run) -> bool:
    return bool(run.numerics["loss"].notna().any()) or any("loss" in facts for facts in run.steps["facts"])


def _not_finite(run: Run) -> list[str]:
    """Return where a loss or gradient norm was first not finite; such values are logged as words."""
    steps, numerics = run.steps, run.numerics
    told = [
        (int(step), int(rank), name)
        for step, rank, facts in zip(steps["step"], steps["rank"], steps["facts"], strict=True)
        for name in MUST_BE_FINITE
        if _is_not_finite(facts.get(name))
    ]
    told += [
        (int(step), int(rank), name)
        for name in MUST_BE_FINITE
        for step, rank, value in zip(numerics["step"], numerics["rank"], numerics[name], strict=True)
        if _is_not_finite(value)
    ]
    if not told:
        return []
    step, rank, name = min(told)
    return [f"{name} was first not finite on rank {rank} in step {step}"]


def _is_not_finite(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower().lstrip("-+") in ("nan", "inf", "infinity")
    return isinstance(value, float) and not np.isfinite(value)


def _smaller(run: Run, verdict: Verdict) -> str:
    if verdict.name == HEALTHY:
        return "nothing to reproduce"
    if not verdict.culprits and not verdict.victims:
        return "these logs do not tell which ranks it takes"
    culprits = verdict.culprits or verdict.victims
    peers = [rank for rank in run.ranks if rank not in culprits]
    ranks = sorted({*culprits, *peers[: max(0, FEWEST_RANKS - len(culprits))]})
    where = f" in {in_group(verdict.group)}" if verdict.group else ""
    until = f" until step {verdict.step}" if verdict.step is not None else ""
    site = f", and look at {short(verdict.site)}" if verdict.site else ""
    script = next((text for text in run.headers["script"] if isinstance(text, str)), "the script")
    return (
        f"run {script} with {counted(len(ranks), 'rank')} that {verb(ranks, 'does', 'do')} what {named(ranks)} did"
        f"{where}{until}{site}; "
        "what depends on the data needs the same samples, what depends on the size of the world needs all ranks"
    )


def _order(run: Run, verdict: Verdict) -> str:
    calls = run.calls.loc[~run.calls["p2p"], list(ORDERED)]
    if calls.empty:
        return "no collective was recorded"
    different = _first_difference(calls)
    if different is not None:
        return _difference(run, calls, *different)
    parts = [_reached(run, group) for _, group in _uneven(calls)]
    groups = counted(calls["group_key"].nunique(), "group")
    text = f"op, type and size of {counted(len(calls), 'call')} in {groups} agree as far as the members came"
    if parts:
        text += "; " + "; ".join(parts[:MOST_GROUPS])
    if "divergence" in verdict.name or "mismatch" in verdict.name:
        return f"{text}; but not what they are for: {verdict.summary.splitlines()[0]}"
    if run.quality.window_bytes is not None or run.quality.dropped_records:
        text += "; the oldest calls are not in these logs"
    return text


def _first_difference(calls: pd.DataFrame) -> tuple[str, int] | None:
    """Return group and sequence number of the earliest collective whose members issued something else."""
    places = (calls["group_key"].cat.codes.to_numpy().astype(np.int64) << SEQ_BITS) + calls["seq"].to_numpy()
    codes, _ = pd.factorize(places)
    first = np.zeros(int(codes.max()) + 1, dtype=np.int64)
    agree = calls["agree"].to_numpy()
    first[codes[::-1]] = agree[::-1]
    differ = np.unique(codes[agree != first[codes]])
    if not len(differ):
        return None
    different = calls[np.isin(codes, differ)].groupby(["group_key", "seq"], observed=True)["start_ns"].min()
    ordered = different.reset_index().sort_values(["start_ns", "group_key", "seq"])
    return str(ordered["group_key"].iloc[0]), int(ordered["seq"].iloc[0])


def _difference(run: Run, calls: pd.DataFrame, key: str, seq: int) -> str:
    there = calls[(calls["group_key"] == key) & (calls["seq"] == seq)]
    issued: dict[str, list[int]] = {}
    for row in there.to_dict("records"):
        frames = run.paths.get(int(row["path"]), ())
        site = f" at {short(location(frames[-1]))}" if frames else ""
        size = "" if row["dtype"] is None else f" of {row['numel']} {row['dtype']}"
        issued.setdefault(f"{row['op']}{size}{site}", []).append(int(row["rank"]))
    sides = "; ".join(f"{named(ranks)}: {what}" for what, ranks in list(issued.items())[:MOST_GROUPS])
    name = group_name(run, str(there["group"].iloc[0]), there["members"].iloc[0])
    where = f"number {seq}" if seq != NUMBER_UNKNOWN else "a call"
    return f"differs at {where} of {in_group(name)}: {sides}"


def _uneven(calls: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the groups some of whose members issued fewer collectives, with the last number of each member."""
    last = calls.groupby(["group_key", "rank"], observed=True)["seq"].max().reset_index()
    uneven = [(str(key), rows) for key, rows in last.groupby("group_key", observed=True) if rows["seq"].nunique() > 1]
    of_groups = calls.drop_duplicates("group_key").set_index("group_key")[["group", "members"]]
    return [(key, rows.join(of_groups, on="group_key")) for key, rows in uneven[:MOST_GROUPS]]


def _reached(run: Run, rows: pd.DataFrame) -> str:
    name = group_name(run, str(rows["group"].iloc[0]), rows["members"].iloc[0])
    ends = [
        f"{named(ranks['rank'].tolist())} issued {seq}"
        for seq, ranks in sorted(rows.groupby("seq"), key=lambda item: -int(str(item[0])))
    ]
    return f"group {name}: " + ", ".join(ends[:MOST_GROUPS])


def _shares(measured: Mapping[str, Any]) -> str:
    unknown, ranks = measured["unknown"], measured["ranks"]
    for reason in ("steps", "shares"):
        if reason in unknown:
            return f"these logs cannot tell: {unknown[reason]}{_used(measured)}"
    names = {"computing": "compute", "communication": "communication", "data": "data", "waiting": "wait"}
    parts = [f"{name} {_span([row[f'{share}_share'] for row in ranks])}" for name, share in names.items()]
    pace = float(np.median([row["step_seconds"] for row in ranks]))
    steps = max(row["steps"] for row in ranks)
    newest = "newest " if measured["covers"] == "newest steps" else ""
    return f"{', '.join(parts)} of a step of {seconds(pace * 1e9)} ({newest}{counted(steps, 'step')}){_used(measured)}"


def _used(measured: Mapping[str, Any]) -> str:
    """Return what of the devices' peak is used, and what is computed twice, where that is known."""
    told, said = measured["efficiency"], ""
    if told["mfu"] is not None:
        said += f"; {100 * told['mfu']:.0f} % of the devices' peak (MFU)"
    if told["bound_by"] is not None:
        said += (
            f", bound by {told['bound_by']}: {told['flops_per_byte']:.3g} operations a byte sent, "
            f"{told['balance']:.3g} would balance"
        )
    if told["recompute_share"]:
        said += f"; {100 * told['recompute_share']:.0f} % of the backward computes activations again"
    return said


def _span(shares: Sequence[float]) -> str:
    low, high = round(min(shares) * 100), round(max(shares) * 100)
    return f"{low} %" if low == high else f"{low}-{high} %"


def _pace(measured: Mapping[str, Any]) -> str:
    unknown, ranks, slowest = measured["unknown"], measured["ranks"], measured["slowest"]
    tokens = [row["tokens_per_second"] for row in ranks if row["tokens_per_second"] is not None]
    text = unknown["tokens"] if "tokens" in unknown else f"{sum(tokens):,.0f} tokens/s"
    if "steps" in unknown or "shares" in unknown:
        return f"{text}; nor the slowest rank: {unknown.get('steps') or unknown.get('shares')}"
    if "slowest" in unknown:
        return f"{text}; nor the slowest rank: {unknown['slowest']}"
    if slowest is None:
        return f"{text}; no rank's own time is notably longer than the others'"
    own, typical = slowest["own_step_seconds"], slowest["typical_seconds"]
    times = f" ({own / typical:.1f}x)" if typical else ""
    return (
        f"{text}; rank {slowest['rank']} takes {seconds(own * 1e9)} of its own for a step, "
        f"{seconds(typical * 1e9)} is typical{times}"
    )
