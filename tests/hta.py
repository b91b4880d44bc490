"""HTA 0.6.1's numbers for a set of traces, its mistakes included, to compare with what it published.

Written from its definitions: plain loops over events, times in microseconds as doubles, and not used for anything
that is reported.
"""

import gzip
import itertools
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEP = "ProfilerStep#"
COMMUNICATION = re.compile(r"nccl|hip|hccl|.*ncclKernel", re.DOTALL)
MEMORY = ("Memcpy", "Memset", "dma")
NEITHER = re.compile(
    r".*(Memcpy|Memset|dma|Sync)|cuda.*LaunchKernel|"
    r"Stream Wait Event|runFunction|job_exe|packet|pe_exe|cpum_exe_subgraph|collective_subgraph_execution",
    re.DOTALL,
)
SYNCHRONISATION = ("Event Sync", "Context Sync")
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
SHORT_GAP = 30
CONSIDERABLE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An event that HTA keeps."""

    index: int
    """Its place in the file."""
    name: str
    cat: str
    ts: float
    dur: float
    stream: int
    correlation: int

    @property
    def end(self) -> float:
        return self.ts + self.dur

    @property
    def on_device(self) -> bool:
        return (self.stream >= 0 and self.correlation >= 0) or self.name in SYNCHRONISATION

    @property
    def kind(self) -> str:
        if COMMUNICATION.match(self.name):
            return "communication"
        if self.name.startswith(MEMORY):
            return "memory"
        return "neither" if NEITHER.match(self.name) else "compute"


def load(files: Mapping[int, Path]) -> dict[int, list[Row]]:
    """Return the rows of each rank, without the last step where the ranks have several."""
    rows = {rank: _rows(_events(file)) for rank, file in files.items()}
    steps = {row.name for each in rows.values() for row in each if row.name.startswith(STEP)}
    return {rank: _without_last_step(each) if len(steps) > 1 else each for rank, each in rows.items()}


def _events(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt") as opened:
        events: list[dict[str, Any]] = json.load(opened)["traceEvents"]
    return events


def _rows(events: Sequence[Mapping[str, Any]]) -> list[Row]:
    rounded = any(not isinstance(event.get("ts"), int) for event in events)
    return [
        _row(index, event, rounded)
        for index, event in enumerate(events)
        if "dur" in event and event.get("cat") not in (None, "Trace")
    ]


def _row(index: int, event: Mapping[str, Any], rounded: bool) -> Row:
    arguments = event.get("args", {})
    stream, correlation = arguments.get("stream", -1), arguments.get("correlation", -1)
    ts, dur = event["ts"], event["dur"]
    if rounded:
        end = math.floor(ts + dur)
        ts = math.ceil(ts)
        dur = end - ts
    return Row(
        index=index,
        name=event["name"],
        cat=event["cat"],
        ts=ts,
        dur=dur,
        stream=stream if isinstance(stream, int) else -1,
        correlation=correlation,
    )


def _without_last_step(rows: Sequence[Row]) -> list[Row]:
    host, device = [row for row in rows if not row.on_device], [row for row in rows if row.on_device]
    steps = [row.ts for row in rows if row.name.startswith(STEP)]
    cut = max(steps) if steps else min(row.ts for row in host)
    kept = [row for row in host if row.ts < cut]
    launches = Counter(row.correlation for row in kept)
    return kept + [row for row in device for _ in range(launches[row.correlation])]


# ---- temporal breakdown and overlap -----------------------------------------------------------------------------
def _merged(rows: Iterable[Row]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in sorted((row.ts, row.end) for row in rows):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _length(intervals: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in intervals)


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 2)


def temporal(rows: Sequence[Row]) -> dict[str, float]:
    """Return one row of the temporal breakdown, without its rank."""
    on_stream = [row for row in rows if row.stream != -1]
    busy = _merged(on_stream)
    kernel = busy[-1][1] - busy[0][0]
    idle = kernel - _length(busy)
    compute = _length(_merged(row for row in on_stream if row.kind == "compute"))
    other = kernel - compute - idle
    return {
        "idle_time(us)": idle,
        "compute_time(us)": compute,
        "non_compute_time(us)": other,
        "kernel_time(us)": kernel,
        "idle_time_pctg": _percent(idle, kernel),
        "compute_time_pctg": _percent(compute, kernel),
        "non_compute_time_pctg": _percent(other, kernel),
    }


def overlap(rows: Sequence[Row]) -> float:
    """Return how much of the communication runs beside computing, in percent."""
    on_stream = [row for row in rows if row.stream != -1]
    kinds = {kind: [row for row in on_stream if row.kind == kind] for kind in ("communication", "compute")}
    communication, compute = (_merged(each) for each in kinds.values())
    if not communication:
        return math.nan
    # An interval of negative length shares no time with another, though it counts in a sum.
    both = sum(max(0, min(one[1], other[1]) - max(one[0], other[0])) for one in communication for other in compute)
    return _percent(both, _length(communication))


# ---- idle time --------------------------------------------------------------------------------------------------
def idle(rows: Sequence[Row]) -> dict[tuple[int, str], tuple[float, float]]:
    """Return idle time and its share of the stream's by stream and category."""
    launches = {row.correlation: row.ts for row in rows if not row.on_device and row.correlation != -1}
    first = next((row.ts for row in rows if row.index == 0), math.inf * -1)
    found: dict[tuple[int, str], float] = {}
    on_device = [row for row in rows if row.on_device and row.cat in ON_DEVICE and row.stream != -1]
    for stream in sorted({row.stream for row in on_device}):
        ordered = sorted((row for row in on_device if row.stream == stream), key=lambda row: row.ts)
        found[stream, "other"] = 0
        for before, row in itertools.pairwise(ordered):
            gap = row.ts - before.end
            late = launches.get(row.correlation, first) > before.end
            category = "host_wait" if late else "kernel_wait" if gap < SHORT_GAP else "other"
            found[stream, category] = found.get((stream, category), 0) + gap
    totals: Counter[int] = Counter()
    for (stream, _), time in found.items():
        totals[stream] += time  # type: ignore[assignment]  # a counter of microseconds
    return {
        (stream, category): (time, round(time / totals[stream], 2) if totals[stream] else math.nan)
        for (stream, category), time in found.items()
    }


# ---- queues and stragglers --------------------------------------------------------------------------------------
LAUNCHES = frozenset(
    (
        *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"),
        *("cudaMemcpyAsync", "cudaMemsetAsync", "hipLaunchKernel", "hipExtModuleLaunchKernel"),
        *("hipMemcpyAsync", "hipMemsetAsync", "hipMemcpyWithStream"),
    )
)


def queue(rows: Sequence[Row], stream: int) -> tuple[int, float, int]:
    """Return points, mean over points, and maximum of a stream's queue."""
    launched = {row.correlation: row.ts for row in rows if row.name in LAUNCHES}
    started = [
        (row.ts, launched[row.correlation])
        for row in rows
        if row.stream == stream and row.on_device and row.correlation in launched
    ]
    changes = sorted([(launch, 1) for _, launch in started] + [(start, -1) for start, _ in started], key=lambda c: c[0])
    lengths = list(itertools.accumulate(change for _, change in changes))
    return len(lengths), statistics.fmean(lengths), max(lengths)


def stragglers(ranks: Mapping[int, Sequence[Row]], most: int = 1) -> list[int]:
    """Return the ranks that begin the most uneven collective last, of a run of one step."""
    everything = [row for rows in ranks.values() for row in rows]
    step = max(row.end for row in everything) - min(row.ts for row in everything)
    last: dict[tuple[int, str], dict[int, Row]] = {}
    for rank, rows in ranks.items():
        for row in sorted((row for row in rows if row.on_device), key=lambda row: row.index):
            if row.name.startswith("ncclKernel") and row.stream > 0 and row.dur >= CONSIDERABLE * step:
                last.setdefault((row.stream, row.name), {})[rank] = row
    if not last:
        raise ValueError("no collective")
    uneven = max(last, key=lambda key: statistics.stdev(row.dur / step for row in last[key].values()))
    starts = {rank: row.ts for rank, row in last[uneven].items()}
    limit = sorted(starts.values(), reverse=True)[most - 1]
    return sorted(rank for rank, start in starts.items() if start >= limit)
