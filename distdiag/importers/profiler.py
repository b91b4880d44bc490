"""Traces of the PyTorch profiler: Kineto's JSON, packed or not, of one rank or many.

A trace is measured as it is read and then forgotten, so that any number of them needs the memory of one.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distdiag.errors import DistdiagError
from distdiag.importers._contract import Measured
from distdiag.importers._ranks import told_rank_in_name
from distdiag.importers._text.filenames import numbered
from distdiag.importers._traces.counted import Collectives, collectives
from distdiag.importers._traces.device import Timeline, timelines
from distdiag.importers._traces.pieces import NotATraceError, unpacked_head
from distdiag.importers._traces.times import MAX_NUMBER
from distdiag.importers._traces.trace import Trace, read_trace
from distdiag.run import COLLECTIVE_COLUMNS, PROFILE_COLUMNS, Measurements
from distdiag.run.frames import frame

NAME = "profiler"
NO_DEVICE_ACTIVITY = "no device activity"
NOTHING_BEFORE_LAST_STEP = "no device activity was launched before the last step, which may be cut"

_KINETO = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
"""What Kineto writes before the events."""
_CATEGORY = re.compile(
    rb'"cat"\s*:\s*"(?:[Kk]ernel|gpu_mem\w+|Mem(?:cpy|set)|cuda_sync|\w+_(?:runtime|driver)|Runtime|cpu_op|Operator|'
    rb'python_function|(?:gpu_)?user_annotation|Trace|ac2g|fwdbwd)"'
)
"""What is in the events, where another tool wrote them again; other tools' traces have other categories."""


def recognises(path: Path, head: bytes) -> bool:
    """Return whether a file is a trace of the profiler, and not of any tool that writes this format."""
    text = unpacked_head(head).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith((b"{", b"[")):
        return False
    if all(word in text for word in _KINETO[:2]):
        return True
    events = text.startswith(b"[") or b'"traceEvents"' in text
    return events and (any(word in text for word in _KINETO) or _CATEGORY.search(text) is not None)


def read(files: Sequence[Path]) -> Measured:
    """Return a row per device of each trace, and the communication kernels of all.

    Raises ``DistdiagError`` when none of the files holds a trace.
    """
    notes: list[str] = []
    read = list(_measured(sorted(files), notes))
    if not read:
        raise DistdiagError(
            f"no trace could be read from {len(files)} profiler {'file' if len(files) == 1 else 'files'}"
            + "".join(f": {note}" for note in notes[:1]),
            "are they whole? a trace is what torch.profiler's export_chrome_trace writes",
        )
    traces = _newest(read, notes)
    ranks = _ranks(traces, notes)
    ordered = sorted(zip(ranks, traces, strict=True), key=lambda each: (each[0], each[1].file))
    return Measured(
        tables=Measurements(
            profiles=_profiles(ordered),
            collectives=_communication(ordered),
            world_size=max((trace.world_size for trace in traces if trace.world_size is not None), default=None),
        ),
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    """What stays of a trace."""

    file: str
    rank: int | None
    world_size: int | None
    begins_ns: int
    """When the first activity of its device began."""
    rows: tuple[Mapping[str, Any], ...]
    collectives: Collectives


def _measured(files: Sequence[Path], notes: list[str]) -> Iterator[_Trace]:
    common = os.path.commonpath([file.parent.absolute() for file in files])
    numbers = numbered(files)
    for file in files:
        try:
            trace = read_trace(file)
        except (NotATraceError, OSError) as error:
            notes.append(f"{file.name} could not be read: {error}")
            continue
        notes += trace.notes
        yield _Trace(
            file=os.path.relpath(file.absolute(), common),
            rank=next(
                (rank for rank in (trace.rank, told_rank_in_name(file), numbers.get(file)) if rank is not None), None
            ),
            world_size=trace.world_size,
            begins_ns=trace.base_ns + int(trace.activity.start_ns.min(initial=MAX_NUMBER)),
            rows=tuple(_rows(trace)),
            collectives=collectives(trace),
        )


def _newest(traces: Sequence[_Trace], notes: list[str]) -> Sequence[_Trace]:
    """Return of each rank the newest trace, where all have equally many: the profiler's schedule repeats itself."""
    by_rank: dict[int | None, list[_Trace]] = {}
    for trace in sorted(traces, key=lambda each: each.begins_ns):
        by_rank.setdefault(trace.rank, []).append(trace)
    (count, *others) = {len(of_rank) for of_rank in by_rank.values()}
    if count < 2 or others or None in by_rank or not all(map(_follow, by_rank.values())):
        return traces
    notes.append(f"of {count} traces of each rank the newest is measured")
    return [of_rank[-1] for of_rank in by_rank.values()]


def _follow(traces: Sequence[_Trace]) -> bool:
    """Return whether the traces of one rank are of different times."""
    return len({trace.begins_ns for trace in traces}) == len(traces)


def _ranks(traces: Sequence[_Trace], notes: list[str]) -> list[int]:
    """Return the rank of each trace: as it says, as its name says, else a free number."""
    told = {trace.rank for trace in traces if trace.rank is not None}
    free = (number for number in range(len(traces)) if number not in told)
    ranks = [next(free) if trace.rank is None else trace.rank for trace in traces]
    for trace, given in zip(traces, ranks, strict=True):
        if trace.rank is None:
            notes.append(_numbered(trace, given))
    for rank in sorted(told):
        same = [trace.file for trace in traces if trace.rank == rank]
        if len(same) > 1:
            notes.append(f"{len(same)} traces are of rank {rank}: {', '.join(same[:3])}{' …' if len(same) > 3 else ''}")
    return ranks


def _numbered(trace: _Trace, rank: int) -> str:
    return f"neither {trace.file} nor its name tells its rank: it is called rank {rank} here"


def _profiles(traces: Sequence[tuple[int, _Trace]]) -> Any:
    rows = [{"rank": rank, "file": trace.file, **row} for rank, trace in traces for row in _with_notes(trace, rank)]
    return frame(PROFILE_COLUMNS, {name: [row[name] for row in rows] for name in PROFILE_COLUMNS})


def _with_notes(trace: _Trace, rank: int) -> Iterator[Mapping[str, Any]]:
    for row in trace.rows:
        yield row if trace.rank is not None else {**row, "notes": (*row["notes"], _numbered(trace, rank))}


def _rows(trace: Trace) -> Iterator[Mapping[str, Any]]:
    found = False
    for timeline in timelines(trace):
        found = True
        yield {**_row(timeline), "notes": (*timeline.notes, *trace.notes)}
    if not found:
        told = {name: type_ for name, type_ in PROFILE_COLUMNS.items() if name not in ("rank", "file")}
        nothing = {name: 0 if type_ == "int64" else () for name, type_ in told.items()}
        reason = NOTHING_BEFORE_LAST_STEP if len(trace.activity.start_ns) else NO_DEVICE_ACTIVITY
        yield {**nothing, "device": None, "launch_delays_ns": None, "notes": (reason, *trace.notes)}


def _row(timeline: Timeline) -> Mapping[str, Any]:
    told = asdict(timeline)
    idle = told.pop("idle")
    return {**told, **idle, "device": None if timeline.device < 0 else timeline.device}


def _communication(traces: Sequence[tuple[int, _Trace]]) -> Any:
    columns: dict[str, list[Any]] = {name: [] for name in COLLECTIVE_COLUMNS}
    for rank, trace in traces:
        found = trace.collectives
        count = len(found.group)
        columns["rank"] += [rank] * count
        columns["file"] += [trace.file] * count
        columns["group"] += found.group
        columns["step"] += found.step.tolist()
        columns["number"] += found.number.tolist()
        columns["start_ns"] += found.start_ns.tolist()
        columns["duration_ns"] += found.duration_ns.tolist()
    return frame(COLLECTIVE_COLUMNS, columns)
