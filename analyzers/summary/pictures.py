"""What can be drawn of a run: where ranks waited, the calls around the incident, memory, who waits for whom."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers._wording import fold
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.performance import measure
from distdiag.findings import Arrow, Curve, Heat, Pictures, Span, Verdict
from distdiag.run import Run

MOST_CELLS = 120_000
"""Of a heat map; more make the page slow and show nothing more on a screen."""
MOST_HEAT_RANKS = 1024
MOST_SPANS = 4_000
MOST_SPAN_RANKS = 64
STEPS_BEFORE = 2
"""Steps shown before that of the incident."""
MOST_POINTS = 400
"""Of one curve."""
MOST_CURVES = 64
MOST_ARROWS = 60
NS = 1e9
OPEN, FAILED, ENDED = "open", "failed", "ended"


def pictures_of(run: Run, verdict: Verdict) -> Pictures:
    """Return what can be drawn of a run; each part is bounded, whatever the size of the run."""
    left_out: list[str] = []
    spans, incident = _spans(run, verdict, left_out)
    return Pictures(
        heat=_heat(run, left_out),
        spans=spans,
        incident_seconds=incident,
        curves=_curves(run, verdict, left_out),
        arrows=_arrows(run, left_out),
        left_out=tuple(left_out),
    )


def _heat(run: Run, left_out: list[str]) -> Heat | None:
    measured = measure(run)
    ledger = measured.ledger
    if ledger.empty or "shares" in measured.unknown:
        return None
    ranks = np.unique(ledger["rank"].to_numpy())
    if len(ranks) > MOST_HEAT_RANKS:
        left_out.append(f"the heat map shows the first {MOST_HEAT_RANKS} of {len(ranks)} ranks")
        ranks = ranks[:MOST_HEAT_RANKS]
        ledger = ledger[ledger["rank"] <= ranks[-1]]
    steps = np.unique(ledger["step"].to_numpy())
    per_column = max(1, -(-len(ranks) * len(steps) // MOST_CELLS))
    column = np.searchsorted(steps, ledger["step"].to_numpy()) // per_column
    if per_column > 1:
        left_out.append(f"a column of the heat map is the worst of {per_column} steps")
    cells = pd.DataFrame(
        {
            "rank": ledger["rank"].to_numpy(),
            "column": column,
            "waiting": ledger["waiting_ns"].to_numpy(dtype=float) / 1e6,
            "own": ledger["own_ns"].to_numpy(dtype=float) / 1e6,
        }
    )
    worst = cells.groupby(["rank", "column"])[["waiting", "own"]].max().unstack("column")
    return Heat(
        ranks=tuple(int(rank) for rank in worst.index),
        steps=tuple(int(step) for step in steps[::per_column]),
        waiting_ms=_rows(worst["waiting"].to_numpy()),
        own_ms=_rows(worst["own"].to_numpy()),
    )


def _rows(values: npt.NDArray[np.float64]) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(None if np.isnan(value) else round(float(value), 2) for value in row) for row in values)


def _spans(run: Run, verdict: Verdict, left_out: list[str]) -> tuple[tuple[Span, ...], float | None]:
    """Return the calls of the steps before the incident's, up to the last that is known, and when it began."""
    calls = run.calls
    if calls.empty:
        return (), None
    step = verdict.step if verdict.step is not None else int(calls["step"].max())
    shown = calls[(calls["step"] >= step - STEPS_BEFORE).to_numpy()]
    shown = _of_ranks(shown, _told_ranks(run, verdict), left_out)
    if len(shown) > MOST_SPANS:
        each = max(1, MOST_SPANS // shown["rank"].nunique())
        shown = shown.groupby("rank", sort=False).tail(each)
        left_out.append(f"the timeline shows the last {each} calls of a rank")
    if shown.empty:
        return (), None
    origin = int(shown["start_ns"].min())
    newest = int(max(shown["start_ns"].max(), shown["end_ns"].dropna().max() if shown["end_ns"].notna().any() else 0))
    newest = max([newest, *(int(each["time_ns"].max()) for each in (run.pulses, run.faults) if len(each))])
    ends = shown["end_ns"].fillna(newest).to_numpy(dtype="int64")
    state = np.where(shown["end_ns"].isna(), OPEN, np.where(shown["failed"], FAILED, ENDED))
    collective = shown.groupby(["group_key", "p2p", "seq"], observed=True, sort=False).ngroup()
    columns = (
        shown["rank"],
        shown["group"].astype(str),
        _labels(run, shown),
        collective,
        shown["start_ns"],
        ends,
        state,
    )
    spans = tuple(
        Span(
            rank=int(rank),
            group=group,
            label=label,
            operation=-1 if peer_to_peer else int(operation),
            start_seconds=(int(start) - origin) / NS,
            end_seconds=(int(end) - origin) / NS,
            state=str(state_of),
        )
        for rank, group, label, operation, start, end, state_of, peer_to_peer in zip(
            *columns, shown["p2p"], strict=True
        )
    )
    return spans, _begun(shown, verdict, origin)


def _told_ranks(run: Run, verdict: Verdict) -> list[int]:
    """Return the ranks in the order in which they matter to the verdict."""
    first = [*verdict.culprits, *verdict.victims]
    told = set(first)
    return [*first, *(rank for rank in run.ranks if rank not in told)]


def _of_ranks(calls: pd.DataFrame, ranks: Sequence[int], left_out: list[str]) -> pd.DataFrame:
    if len(ranks) <= MOST_SPAN_RANKS:
        return calls
    kept = sorted(ranks[:MOST_SPAN_RANKS])
    left_out.append(f"the timeline shows ranks {fold(kept)} of {len(ranks)}")
    return calls[calls["rank"].isin(kept).to_numpy()]


def _labels(run: Run, calls: pd.DataFrame) -> list[str]:
    where = {path: frames[-1] if frames else "" for path, frames in run.paths.items()}
    return [
        f"{op} {seq}, step {step}" + (f", {where[path]}" if where.get(path) else "")
        for op, seq, step, path in zip(calls["op"], calls["seq"], calls["step"], calls["path"], strict=True)
    ]


def _begun(calls: pd.DataFrame, verdict: Verdict, origin: int) -> float | None:
    if verdict.seq is None or verdict.group is None:
        return None
    named = calls["seq"].eq(verdict.seq) & calls["group"].astype(str).eq(verdict.group)
    starts = calls.loc[named.to_numpy(), "start_ns"]
    return None if starts.empty else (int(starts.min()) - origin) / NS


def _curves(run: Run, verdict: Verdict, left_out: list[str]) -> tuple[Curve, ...]:
    memory = run.memory
    if memory.empty:
        return ()
    ranks = _told_ranks(run, verdict)[:MOST_CURVES]
    if len(run.ranks) > MOST_CURVES:
        left_out.append(f"memory is drawn for {MOST_CURVES} of {len(run.ranks)} ranks")
    what = "allocated_bytes" if memory["allocated_bytes"].notna().any() else "rss_bytes"
    origin = int(memory["time_ns"].min())
    curves = []
    for rank in sorted(ranks):
        own = memory[(memory["rank"] == rank).to_numpy() & memory[what].notna().to_numpy()].sort_values("time_ns")
        own = own.iloc[:: max(1, -(-len(own) // MOST_POINTS))]
        if len(own):
            curves.append(
                Curve(
                    rank=rank,
                    what="device memory" if what == "allocated_bytes" else "host memory",
                    seconds=tuple(round((int(moment) - origin) / NS, 3) for moment in own["time_ns"]),
                    gibibytes=tuple(round(int(size) / 2**30, 4) for size in own[what]),
                )
            )
    return tuple(curves)


def _arrows(run: Run, left_out: list[str]) -> tuple[Arrow, ...]:
    waits = sorted(investigate(run).waits, key=lambda wait: (wait.since_ns, wait.group, wait.number))
    if len(waits) > MOST_ARROWS:
        left_out.append(f"{len(waits) - MOST_ARROWS} operations that wait are not drawn")
    return tuple(
        Arrow(
            waiters=tuple(sorted(wait.waiters)),
            absent=tuple(sorted(wait.absent)),
            operation=f"{wait.kind} {wait.number} of group {wait.group}",
        )
        for wait in waits[:MOST_ARROWS]
        if wait.absent
    )
