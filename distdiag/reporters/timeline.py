"""A run as a Chrome trace, for Perfetto or ``chrome://tracing``: all ranks on one aligned clock.

Each rank is a process; its steps, phases, garbage collections and each of its groups are tracks. The members of a
collective, and the two ends of a message, are joined by flow arrows. Format: the Trace Event Format of Chromium.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import msgspec
import numpy as np
import pandas as pd

from distdiag.findings import Report
from distdiag.run import Run

MOST_CALLS = 400_000
"""A browser opens a trace of so many slices, and hardly one of more."""
STEPS, PHASES, PAUSES = 1, 2, 3
FIRST_GROUP = 1000
"""Number of the first track of a group."""
LANES = 100
"""Track numbers set aside for one group: calls that overlap cannot share a track."""
COUNTERS = {"rss_bytes": "host memory", "allocated_bytes": "device memory"}
MICROSECOND_NS = 1e3

Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which part of a run is drawn; None is all of it."""

    first_step: int | None = None
    last_step: int | None = None
    ranks: frozenset[int] | None = None

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a frame that belong to it."""
        kept = pd.Series(True, index=frame.index)
        if self.ranks is not None:
            kept &= frame["rank"].isin(list(self.ranks))
        if "step" in frame.columns:
            if self.first_step is not None:
                kept &= frame["step"] >= self.first_step
            if self.last_step is not None:
                kept &= frame["step"] <= self.last_step
        return frame[kept]


@dataclass(slots=True, kw_only=True)
class Drawn:
    """What was drawn."""

    calls: int = 0
    flows: int = 0
    first_step: int | None = None
    last_step: int | None = None
    left_out: int = 0
    """Calls of older steps that would have made the trace too large."""


@dataclass(slots=True, kw_only=True)
class _Clock:
    origin_ns: int
    last_ns: Mapping[int, int]
    """The newest moment known of each rank."""

    def us(self, moment_ns: int) -> float:
        return (int(moment_ns) - self.origin_ns) / MICROSECOND_NS


@dataclass(slots=True)
class _Lanes:
    """Hands out the first track of a group on which nothing is drawn any more."""

    free: list[int] = field(default_factory=list)
    busy: list[tuple[int, int]] = field(default_factory=list)

    def lane(self, start_ns: int, end_ns: int) -> int:
        while self.busy and self.busy[0][0] <= start_ns:
            heapq.heappush(self.free, heapq.heappop(self.busy)[1])
        lane = heapq.heappop(self.free) if self.free else len(self.busy)
        heapq.heappush(self.busy, (end_ns, lane))
        return min(lane, LANES - 1)


def render(run: Run, report: Report, selection: Selection, out: IO[bytes]) -> Drawn:
    """Write the trace of the selected part of a run and return what it holds.

    Where that is more than ``MOST_CALLS`` calls, the newest steps are drawn.
    """
    drawn = Drawn()
    calls = _bounded(selection.of(run.calls), drawn)
    if drawn.first_step is not None:
        selection = Selection(first_step=drawn.first_step, last_step=selection.last_step, ranks=selection.ranks)
    ends = [frame[["rank", "time_ns"]] for frame in (run.pulses, run.faults, run.memory) if not frame.empty]
    moments = pd.concat(
        [
            *(calls[["rank", name]].rename(columns={name: "time_ns"}).dropna() for name in ("start_ns", "end_ns")),
            *(selection.of(each) for each in ends),
        ]
    )
    last = moments.groupby("rank")["time_ns"].max() if len(moments) else pd.Series(dtype="int64")
    starts = [frame["start_ns"].dropna() for frame in (calls, selection.of(run.steps))]
    earliest = min((int(each.min()) for each in starts if len(each)), default=0)
    clock = _Clock(origin_ns=earliest, last_ns=dict(zip(map(int, last.index), map(int, last), strict=True)))
    parts = (
        _names(run, selection),
        _steps(selection.of(run.steps), clock),
        _phases(selection.of(run.phases), clock),
        _pauses(selection.of(run.gc), "garbage collection", clock),
        _pauses(selection.of(run.compiles), "compile", clock),
        _counters(selection.of(run.memory), clock),
        _faults(selection.of(run.faults), clock),
        _calls(calls, run, clock, drawn, whole=run.quality.window_bytes is None),
        _findings(report, calls, clock),
    )
    _write(parts, report, out)
    return drawn


def _write(parts: Iterable[Iterable[Item]], report: Report, out: IO[bytes]) -> None:
    encode = msgspec.json.encode
    out.write(b'{"displayTimeUnit":"ms","otherData":')
    out.write(encode({"verdict": report.verdict.name, "summary": report.verdict.summary}))
    out.write(b',"traceEvents":[')
    separator = b"\n"
    for part in parts:
        for item in part:
            out.write(separator + encode(item))
            separator = b",\n"
    out.write(b"\n]}\n")


def _bounded(calls: pd.DataFrame, drawn: Drawn) -> pd.DataFrame:
    """Return the calls of the newest steps that make a trace of bearable size."""
    if len(calls) > MOST_CALLS:
        per_step = calls["step"].value_counts().sort_index(ascending=False).cumsum()
        fitting = per_step.index[per_step <= MOST_CALLS]
        drawn.first_step = int(fitting.min()) if len(fitting) else int(per_step.index[0])
        kept = calls[calls["step"] >= drawn.first_step]
        drawn.left_out = len(calls) - len(kept)
        calls = kept
    drawn.calls = len(calls)
    if len(calls):
        drawn.first_step, drawn.last_step = int(calls["step"].min()), int(calls["step"].max())
    return calls


def _names(run: Run, selection: Selection) -> Iterator[Item]:
    for row in selection.of(run.headers).to_dict("records"):
        rank = int(row["rank"])
        yield _meta("process_name", rank, 0, f"rank {rank}  {row['host']}")
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
        for track, name in ((STEPS, "steps"), (PHASES, "phases"), (PAUSES, "pauses")):
            yield _meta("thread_name", rank, track, name)
            yield {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": track, "args": {"sort_index": track}}


def _meta(kind: str, rank: int, track: int, name: str) -> Item:
    return {"ph": "M", "name": kind, "pid": rank, "tid": track, "args": {"name": name}}


def _slice(rank: int, track: int, name: str, start_us: float, duration_us: float, args: Item) -> Item:
    known = {key: value for key, value in args.items() if value is not None and value is not pd.NA and value == value}
    return {
        "ph": "X",
        "pid": int(rank),
        "tid": track,
        "name": name,
        "ts": start_us,
        "dur": max(duration_us, 0.0),
        "args": known,
    }


def _steps(steps: pd.DataFrame, clock: _Clock) -> Iterator[Item]:
    timed = steps[steps["start_ns"].notna() & steps["end_ns"].notna()]
    for row in timed.to_dict("records"):
        parts = {f"{part} ms": row[f"{part}_ns"] for part in ("data", "forward", "backward", "optimizer")}
        args = {name: value / 1e6 for name, value in parts.items() if not pd.isna(value)}
        duration = (row["end_ns"] - row["start_ns"]) / MICROSECOND_NS
        facts = row["facts"] or {}
        yield _slice(row["rank"], STEPS, f"step {row['step']}", clock.us(row["start_ns"]), duration, args | facts)


def _phases(phases: pd.DataFrame, clock: _Clock) -> Iterator[Item]:
    ends = {(row["rank"], row["number"]): row["time_ns"] for row in phases[phases["edge"] == "end"].to_dict("records")}
    lanes: dict[int, _Lanes] = {}
    for row in phases[phases["edge"] == "begin"].sort_values("time_ns").to_dict("records"):
        rank, begin = int(row["rank"]), int(row["time_ns"])
        end = ends.get((rank, row["number"]))
        until = int(end) if end is not None else max(clock.last_ns.get(rank, begin), begin)
        lane = lanes.setdefault(rank, _Lanes()).lane(begin, until)
        name = row["phase"] if end is not None else f"{row['phase']} (never ended)"
        args = {"step": row["step"], "thread": row["thread"]}
        # Phases nest, so that one track does for those of the main thread.
        track = PHASES if row["thread"] == "MainThread" else PHASES * LANES + lane
        yield _slice(rank, track, name, clock.us(begin), (until - begin) / MICROSECOND_NS, args)


def _pauses(pauses: pd.DataFrame, name: str, clock: _Clock) -> Iterator[Item]:
    for row in pauses.to_dict("records"):
        duration = row["duration_ns"] / MICROSECOND_NS
        yield _slice(row["rank"], PAUSES, name, clock.us(row["time_ns"]) - duration, duration, {"step": row["step"]})


def _counters(memory: pd.DataFrame, clock: _Clock) -> Iterator[Item]:
    for column, name in COUNTERS.items():
        for rank, moment, size in memory[["rank", "time_ns", column]].dropna().itertuples(index=False):
            yield {"ph": "C", "pid": int(rank), "name": name, "ts": clock.us(moment), "args": {"bytes": int(size)}}


def _faults(faults: pd.DataFrame, clock: _Clock) -> Iterator[Item]:
    for row in faults.to_dict("records"):
        what = " ".join(str(part) for part in (row["fault"], row["type"]) if part)
        args = {"message": row["message"] or "", "where": row["where"] or ""}
        yield _instant(what, clock.us(row["time_ns"]), "p", args) | {"pid": int(row["rank"]), "tid": STEPS}


def _instant(name: str, at_us: float, scope: str, args: Item) -> Item:
    return {"ph": "i", "name": name, "ts": at_us, "s": scope, "args": args}


def _calls(calls: pd.DataFrame, run: Run, clock: _Clock, drawn: Drawn, *, whole: bool) -> Iterator[Item]:
    tracks: dict[str, int] = {}
    lanes: dict[tuple[int, str], _Lanes] = {}
    named: set[tuple[int, int]] = set()
    for row in _joined(calls, whole=whole).sort_values(["rank", "start_ns"]).to_dict("records"):
        rank, group, start = int(row["rank"]), str(row["group"]), int(row["start_ns"])
        ended = not pd.isna(row["end_ns"])
        until = int(row["end_ns"]) if ended else max(clock.last_ns.get(rank, start), start)
        lane = lanes.setdefault((rank, group), _Lanes()).lane(start, until)
        track = tracks.setdefault(group, FIRST_GROUP + LANES * len(tracks)) + lane
        if (rank, track) not in named:
            named.add((rank, track))
            yield _meta("thread_name", rank, track, f"group {group}")
        yield _call(row, run, track, clock, until, ended=ended)
        if row["edge"]:
            drawn.flows += row["edge"] == "s"
            item: Item = {"ph": row["edge"], "id": int(row["flow"]), "pid": rank, "tid": track, "name": str(row["op"])}
            yield item | {"cat": "calls", "ts": clock.us(start)} | ({"bp": "e"} if row["edge"] == "f" else {})


def _joined(calls: pd.DataFrame, *, whole: bool) -> pd.DataFrame:
    """Return the calls with the number of the ``flow`` that joins those of one operation, in order of arrival.

    ``edge`` is ``s`` at the first to arrive, ``f`` at the last, ``t`` between, and empty where nothing is joined.
    Messages are counted per channel, which needs logs that are ``whole``.
    """
    p2p, sends = calls["p2p"].to_numpy(bool), calls["op"].astype(str).str.startswith("send").to_numpy(bool)
    rank, peer = calls["rank"].to_numpy(), calls["peer"].fillna(-1).to_numpy("int64")
    keys = pd.DataFrame(
        {
            "group": calls["group_key"].astype(str),
            "sender": np.where(p2p, np.where(sends, rank, peer), -1),
            "receiver": np.where(p2p, np.where(sends, peer, rank), -1),
            "tag": np.where(p2p, calls["tag"].fillna(0).to_numpy("int64"), 0),
        },
        index=calls.index,
    )
    channel = list(keys.columns)
    keys["number"] = np.where(p2p, keys.assign(sends=sends).groupby([*channel, "sends"]).cumcount(), calls["seq"])
    operation = keys.groupby([*channel, "number"], sort=True).ngroup()
    arrived = calls.assign(flow=operation).sort_values("start_ns", kind="stable")
    position = arrived.groupby("flow").cumcount()
    members = arrived.groupby("flow")["rank"].transform("size")
    edge = np.where(position == 0, "s", np.where(position == members - 1, "f", "t"))
    known = (members > 1) & ((arrived["seq"] > 0) | arrived["p2p"]) & (whole | ~arrived["p2p"])
    return arrived.assign(edge=np.where(known, edge, ""))


def _call(row: Mapping[Any, Any], run: Run, track: int, clock: _Clock, until: int, *, ended: bool) -> Item:
    frames = run.paths.get(int(row["path"]), ())
    state = "" if ended else " (never ended)"
    if row["failed"]:
        state = " (failed)"
    args: Item = {
        "group": str(row["group"]),
        "step": int(row["step"]),
        "phase": str(row["phase"]) or None,
        "dtype": row["dtype"],
        "shapes": str(list(row["shapes"] or ())),
        "bytes": int(row["size_bytes"]),
        "peer": None if pd.isna(row["peer"]) else int(row["peer"]),
        "module": row["module"],
        "from": frames[-1] if frames else None,
        "error": row["error"],
    }
    start = int(row["start_ns"])
    name = f"{row['op']} {row['seq']}{state}"
    return _slice(row["rank"], track, name, clock.us(start), (until - start) / MICROSECOND_NS, args)


def _findings(report: Report, calls: pd.DataFrame, clock: _Clock) -> Iterator[Item]:
    """Yield an instant per finding: at the call it names, else where its step begins, else at the end."""
    end = max(clock.last_ns.values(), default=clock.origin_ns)
    for finding in report.findings:
        at = calls
        if finding.step is not None:
            at = at[at["step"] == finding.step]
        if finding.seq is not None and finding.group is not None:
            named = at[(at["seq"] == finding.seq) & (at["group"].astype(str) == finding.group)]
            at = named if len(named) else at
        moment = int(at["start_ns"].min()) if len(at) and finding.step is not None else end
        args = {"summary": finding.summary, "evidence": "; ".join(finding.evidence)}
        first = min(finding.culprits, default=min(clock.last_ns, default=0))
        yield _instant(f"{finding.code} {finding.name}", clock.us(moment), "g", args) | {"pid": first, "tid": STEPS}
