"""A directory of logs as a ``Run``: frames with declared columns on one clock, and what is wrong with the data."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ibis
import numpy as np
import pandas as pd

from distdiag import events
from distdiag._bulk import read_calls
from distdiag._calls import UNKNOWN
from distdiag._clocks import clocks_of, corrections
from distdiag._crashes import crash_frame, user_frames
from distdiag._frames import CALL_COLUMNS, CRASH_COLUMNS, TIMES, Ranked, frame_of
from distdiag._identity import Paths
from distdiag._launch import Launch, choose, processes_of
from distdiag._logfiles import LogFile, discover
from distdiag._quality import Quality
from distdiag._records import Records, decode_lines
from distdiag._steps import merged_steps
from distdiag._window import Part, parts_of, window_bytes
from distdiag.engine import FILE, Engine
from distdiag.errors import DistdiagError

__all__ = ["CALL_COLUMNS", "CRASH_COLUMNS", "Quality", "Run", "load", "user_frames"]

_KINDS = {events.kind_of(kind): kind for kind in events.EVENTS}
_FRAMES: Mapping[str, type[events.Event]] = {
    "groups": events.Group,
    "steps": events.Step,
    "phases": events.Phase,
    "batches": events.Batch,
    "memory": events.Memory,
    "numerics": events.Numerics,
    "faults": events.Fault,
    "stacks": events.Stack,
    "pulses": events.Pulse,
    "gc": events.GarbageCollection,
    "compiles": events.Compile,
    "replays": events.Replay,
    "statuses": events.Status,
    "decisions": events.Decision,
    "dropped": events.Dropped,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Run:
    """The logs of one launch. Moments are wall-clock nanoseconds; ``path`` columns are keys of ``paths``."""

    ranks: tuple[int, ...]
    """Ranks with a readable log."""
    world_size: int | None
    missing: tuple[int, ...]
    """Ranks of the world without a readable log."""
    attempt: int
    """The attempt analysed: the newest."""
    headers: pd.DataFrame
    """One row per rank."""
    groups: pd.DataFrame
    calls: pd.DataFrame
    """One row per call with its signature and, where known, its end; ordered by rank and call."""
    steps: pd.DataFrame
    """One row per rank and step."""
    phases: pd.DataFrame
    batches: pd.DataFrame
    memory: pd.DataFrame
    numerics: pd.DataFrame
    faults: pd.DataFrame
    stacks: pd.DataFrame
    pulses: pd.DataFrame
    gc: pd.DataFrame
    compiles: pd.DataFrame
    replays: pd.DataFrame
    statuses: pd.DataFrame
    decisions: pd.DataFrame
    dropped: pd.DataFrame
    crashes: pd.DataFrame
    paths: Mapping[int, tuple[str, ...]]
    """Call sites by id, outermost frame first; the same frames have the same id on all ranks, 0 has none."""
    quality: Quality
    files: tuple[Path, ...] = ()
    file_ranks: tuple[int, ...] = ()
    engine: Engine = field(default_factory=Engine, repr=False)

    def table(self, kind: str) -> ibis.Table:
        """Return all records of a kind, whatever the frames' window, as a lazy Ibis table with the column ``rank``.

        Times are the raw monotonic clock of each rank, paths and signatures its own numbers.
        """
        table = self.engine.read(self.files, _KINDS[kind])
        ranks = ibis.array(list(self.file_ranks))
        kept = table.drop("rank") if "rank" in table.columns else table
        return kept.mutate(rank=ranks[kept[FILE]]).drop(FILE)


def load(path: Path) -> Run:
    """Read a directory of logs, or one log.

    Raises ``DistdiagError`` when there is nothing that could be analysed: no such path, no log in it, no
    readable record, only logs of a newer schema, logs of several processes in one file.
    """
    logs = discover(path)
    launch = choose(processes_of(logs))
    if not launch.members:
        raise _nothing_to_analyse(path, logs, launch)
    engine = Engine()
    window = window_bytes(launch.members)
    parts = parts_of(launch.members, window, engine)
    records = decode_lines(parts, engine.other_lines([part.path for part in parts]))
    headers = _headers(records)
    clocks = clocks_of(headers, launch.members)
    offsets = {rank: clock.offset_ns for rank, clock in clocks.items()}
    calls, damaged, paths = read_calls(engine, parts, records, offsets)
    ranks = tuple(sorted(records.ranks | set(calls["rank"].unique().tolist())))
    if not ranks:
        raise _nothing_to_analyse(path, logs, launch)
    added, clock_error = corrections(calls, clocks)
    offsets = {rank: offset + added.get(rank, 0) for rank, offset in offsets.items()}
    frames = _frames(records, paths, offsets)
    worlds = sorted({header.world_size for header in headers.values() if header.world_size is not None})
    missing = tuple(rank for rank in range(worlds[-1] if worlds else 0) if rank not in ranks)
    return Run(
        ranks=ranks,
        world_size=worlds[-1] if worlds else None,
        missing=missing,
        attempt=max(launch.members[rank].attempt for rank in ranks),
        headers=frame_of(events.Header, [Ranked(rank=r, record=h) for r, h in headers.items()], paths.id_of, offsets),
        calls=_shifted(calls, added),
        crashes=crash_frame({rank: process.files[0].path for rank, process in launch.members.items()}),
        paths=paths.frames,
        quality=Quality(
            files=len(logs),
            bytes=sum(log.used_bytes for log in logs),
            missing_ranks=missing,
            empty_files=tuple(log.path.name for log in logs if not log.used_bytes and not log.torn),
            unreadable_files=_unreadable(logs, parts, ranks),
            unsupported_files=launch.unsupported,
            undecodable_lines=_by_name(records.undecodable + damaged),
            torn_files=tuple(part.log.path.name for part in parts if part.log.torn),
            unknown_kinds=_by_name(records.unknown_kinds),
            dropped_records=_dropped(records),
            unresolved_calls=int((calls["op"] == UNKNOWN).sum()),
            headerless_ranks=tuple(rank for rank in ranks if rank not in headers),
            doubled_ranks=launch.doubled,
            nameless_files=launch.nameless,
            world_sizes=tuple(worlds),
            run=launch.run,
            other_runs=launch.other_runs,
            older_attempts=launch.older_attempts,
            clock_error_ns=clock_error,
            clock_corrections_ns={rank: shift for rank, shift in sorted(added.items()) if shift},
            window_bytes=window,
        ),
        files=tuple(log.path for process in launch.members.values() for log in process.files),
        file_ranks=tuple(rank for rank, process in launch.members.items() for _ in process.files),
        engine=engine,
        **frames,
    )


def _nothing_to_analyse(path: Path, logs: Sequence[LogFile], launch: Launch) -> DistdiagError:
    if launch.unsupported:
        newer = ", ".join(sorted(set(launch.unsupported.values())))
        return DistdiagError(
            f"the logs in {path} are of schema {newer}; this version reads {events.SCHEMA}",
            "analyse them with the version of distdiag that recorded them, or a newer one",
        )
    if not any(log.used_bytes or log.torn for log in logs):
        return DistdiagError(f"all {len(logs)} logs in {path} are empty", "did the processes get as far as install()?")
    if launch.nameless and not launch.members:
        return DistdiagError(
            f"no log in {path} says which rank it is of", "start the ranks with torchrun, or set RANK and WORLD_SIZE"
        )
    return DistdiagError(f"no readable record in {path}", "distdiag's logs hold one JSON object on each line")


def _headers(records: Records) -> dict[int, events.Header]:
    """Return the header of each rank: its first, with the world size that a later one may know."""
    found: dict[int, events.Header] = {}
    for item in records.by_kind[events.Header]:
        if not isinstance(item.record, events.Header):
            continue
        first = found.setdefault(item.rank, item.record)
        if first.pid != item.record.pid:
            raise DistdiagError(
                f"the log of rank {item.rank} holds records of two processes (pid {first.pid} and {item.record.pid})",
                "keep the file of each process as it was recorded, do not join files",
            )
        if first.world_size is None and item.record.world_size is not None:
            found[item.rank] = item.record
    return dict(sorted(found.items()))


def _frames(records: Records, paths: Paths, offsets: Mapping[int, int]) -> dict[str, pd.DataFrame]:
    def of(kind: type[events.Event]) -> pd.DataFrame:
        return frame_of(kind, records.by_kind[kind], paths.id_of, offsets)

    frames = {name: of(kind) for name, kind in _FRAMES.items()}
    frames["groups"] = frames["groups"].drop_duplicates(["rank", "group", "ranks"], ignore_index=True)
    frames["steps"] = merged_steps(frames["steps"])
    return frames


def _shifted(calls: pd.DataFrame, added: Mapping[int, int]) -> pd.DataFrame:
    if not any(added.values()):
        return calls
    ranks = calls["rank"].to_numpy()
    table = np.zeros(int(ranks.max()) + 1, dtype=np.int64)
    for rank, shift in added.items():
        table[rank] = shift
    return calls.assign(**{name: calls[name] + table[ranks] for name in CALL_COLUMNS if name in TIMES})


def _dropped(records: Records) -> dict[int, int]:
    count: Counter[int] = Counter()
    for item in records.by_kind[events.Dropped]:
        if isinstance(item.record, events.Dropped):
            count[item.rank] += item.record.records
    return dict(sorted(count.items()))


def _unreadable(logs: Sequence[LogFile], parts: Sequence[Part], ranks: Sequence[int]) -> tuple[str, ...]:
    """Return the files that hold something, but no record."""
    nothing_whole = {log.path.name for log in logs if log.torn and not log.used_bytes}
    return tuple(sorted(nothing_whole | {part.log.path.name for part in parts if part.rank not in ranks}))


def _by_name(count: Counter[str]) -> dict[str, int]:
    return {name: number for name, number in sorted(count.items()) if number > 0}
