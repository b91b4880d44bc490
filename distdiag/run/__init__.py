"""A directory of logs as a ``Run``: frames with declared columns on one clock, and what is wrong with the data."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from distdiag import events
from distdiag.deferred import deferred
from distdiag.engine import FILE, Engine
from distdiag.engine.held import HeldEngine
from distdiag.engine.packs import PackEngine, manifest_of
from distdiag.errors import DistdiagError
from distdiag.run.calls import UNKNOWN
from distdiag.run.content import Content, read
from distdiag.run.crashes import crash_frame, user_frames
from distdiag.run.frames import CALL_COLUMNS, CRASH_COLUMNS
from distdiag.run.held import HeldLog
from distdiag.run.held_rows import processes_held
from distdiag.run.launch import Launch, choose, processes_of
from distdiag.run.logfiles import LogFile, discover, last_lines
from distdiag.run.measurements import (
    COLLECTIVE_COLUMNS,
    OPERATION_COLUMNS,
    PROFILE_COLUMNS,
    Measurements,
    frames_without_records,
    no_collectives,
    no_operations,
    no_profiles,
)
from distdiag.run.processes import Members, alive, earlier_of, ranks_of
from distdiag.run.quality import Quality
from distdiag.run.saved import checkpoints_frame, no_checkpoints
from distdiag.run.window import Part, parts_of, window_bytes

if TYPE_CHECKING:
    import ibis
    import pandas as pd
else:
    ibis = deferred("ibis")

__all__ = [
    "CALL_COLUMNS",
    "COLLECTIVE_COLUMNS",
    "CRASH_COLUMNS",
    "OPERATION_COLUMNS",
    "PROFILE_COLUMNS",
    "Measurements",
    "Quality",
    "Run",
    "load",
    "load_earlier",
    "load_held",
    "measured",
    "user_frames",
]

_KINDS = {events.kind_of(kind): kind for kind in events.EVENTS}


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
    loaders: pd.DataFrame
    memory: pd.DataFrame
    numerics: pd.DataFrame
    wrappers: pd.DataFrame
    faults: pd.DataFrame
    stacks: pd.DataFrame
    pulses: pd.DataFrame
    gc: pd.DataFrame
    compiles: pd.DataFrame
    replays: pd.DataFrame
    statuses: pd.DataFrame
    decisions: pd.DataFrame
    caught: pd.DataFrame
    """Exceptions that were handled, and spoken of meanwhile."""
    dropped: pd.DataFrame
    crashes: pd.DataFrame
    paths: Mapping[int, tuple[str, ...]]
    """Call sites by id, outermost frame first; the same frames have the same id on all ranks, 0 has none."""
    quality: Quality
    islands: tuple[frozenset[int], ...] = ()
    """Ranks whose clocks compare with one another, the largest first; more than one where not all clocks do."""
    alive: frozenset[int] = frozenset()
    """Ranks whose processes still ran when their logs were read."""
    files: tuple[Path, ...] = ()
    file_ranks: tuple[int, ...] = ()
    checkpoints: pd.DataFrame = field(default_factory=no_checkpoints)
    """One row per sharded checkpoint that was saved, the oldest first."""
    operations: pd.DataFrame = field(default_factory=no_operations)
    """One row per operation that another tool measured."""
    profiles: pd.DataFrame = field(default_factory=no_profiles)
    """One row per device of a trace that another tool recorded."""
    collectives: pd.DataFrame = field(default_factory=no_collectives)
    """One row per communication kernel in such traces."""
    earlier: tuple[Members, ...] = field(default=(), repr=False)
    """The processes of former attempts of the job by rank, the oldest attempt first; ``load_earlier`` reads one."""
    members: Members = field(default_factory=dict, repr=False)
    """The processes of this attempt by rank."""
    engine: Engine = field(default_factory=Engine, repr=False)

    @property
    def only_measured(self) -> bool:
        """Return whether there are measurements of other tools, and no logs beside them."""
        return not self.ranks and not (self.operations.empty and self.profiles.empty)

    def table(self, *kinds: str, only: Collection[str] | None = None) -> ibis.Table:
        """Return all records of a kind, whatever the frames' window, as a lazy Ibis table with the column ``rank``.

        Times are the raw monotonic clock of each rank, paths and signatures its own numbers. ``only`` these fields are
        read. Of several kinds, read at once, a field is NULL where the kind of a record has none of its name.
        """
        wanted = _KINDS[kinds[0]] if len(kinds) == 1 else tuple(_KINDS[kind] for kind in kinds)
        table = self.engine.read(self.files, wanted, only)
        ranks = ibis.array(list(self.file_ranks))
        kept = table.drop("rank") if "rank" in table.columns else table
        return kept.mutate(rank=ranks[kept[FILE].cast("int32")].cast("int64")).drop(FILE)


def load(path: Path) -> Run:
    """Read a directory of logs, one log, or a packed run.

    Raises ``DistdiagError`` when there is nothing that could be analysed: no such path, no log in it, no
    readable record, only logs of a newer schema, logs of several processes in one file.
    """
    logs = discover(path)
    processes = ranks_of(processes_of(logs))
    launch = choose(processes)
    if not launch.members:
        raise _nothing_to_analyse(path, logs, launch)
    return dataclasses.replace(_read(path, logs, launch), earlier=earlier_of(processes, launch))


def load_held(logs: Sequence[HeldLog]) -> Run:
    """Return the run of logs that are held in memory."""
    processes = processes_held(logs)
    launch = choose(processes)
    files = [file for process in processes for file in process.files]
    if not launch.members:
        raise _nothing_to_analyse(files[0].path, files, launch)
    return dataclasses.replace(_read(files[0].path.parent, files, launch), earlier=earlier_of(processes, launch))


def load_earlier(members: Members) -> Run:
    """Read a former attempt; raises ``DistdiagError`` where nothing of it can be read."""
    logs = [log for process in members.values() for log in process.files]
    run = next((process.run for process in members.values() if process.run is not None), None)
    return _read(logs[0].path.parent, logs, Launch(members=members, run=run))


def _read(path: Path, logs: Sequence[LogFile], launch: Launch) -> Run:
    engine = _engine(path, logs)
    window = window_bytes(launch.members)
    parts = parts_of(launch.members, window, engine)
    content = read(engine, parts)
    if not content.ranks:
        raise _nothing_to_analyse(path, logs, launch)
    quality = _quality(logs, launch, parts, content, window)
    return Run(
        ranks=content.ranks,
        world_size=max(quality.world_sizes, default=None),
        missing=quality.missing_ranks,
        attempt=max(launch.members[rank].attempt for rank in content.ranks),
        crashes=crash_frame(_files_of(launch)),
        paths=content.paths,
        quality=quality,
        islands=content.agreement.islands,
        alive=alive(launch.members) & frozenset(content.ranks),
        files=tuple(log.path for process in launch.members.values() for log in process.files),
        file_ranks=tuple(rank for rank, process in launch.members.items() for _ in process.files),
        checkpoints=checkpoints_frame(content.frames["phases"]),
        earlier=(),
        members=launch.members,
        engine=engine,
        **content.frames,
    )


def _files_of(launch: Launch) -> dict[int, Path]:
    """Return the first file of each rank that has one."""
    firsts = {rank: process.files[0] for rank, process in launch.members.items()}
    return {rank: file.path for rank, file in firsts.items() if file.held is None}


def _engine(path: Path, logs: Sequence[LogFile]) -> Engine:
    held = {log.path: log.held.written for log in logs if log.held is not None}
    if held:
        return HeldEngine(held)
    manifest = manifest_of(path)
    return Engine() if manifest is None else PackEngine(path, manifest)


def measured(measurements: Measurements, quality: Quality) -> Run:
    """Return a run of measurements alone: no ranks with logs, so none that could be missing."""
    return Run(
        ranks=(),
        world_size=measurements.world_size,
        missing=(),
        attempt=0,
        paths={0: ()},
        operations=measurements.operations,
        profiles=measurements.profiles,
        collectives=measurements.collectives,
        quality=quality,
        islands=(),
        alive=frozenset(),
        files=(),
        file_ranks=(),
        earlier=(),
        members={},
        engine=Engine(),
        **frames_without_records(),
    )


def _quality(
    logs: Sequence[LogFile], launch: Launch, parts: Sequence[Part], content: Content, window: int | None
) -> Quality:
    worlds = sorted({header.world_size for header in content.headers.values() if header.world_size is not None})
    read_ranks = frozenset(content.ranks)
    dropped = content.frames["dropped"].groupby("rank")["records"].sum()
    return Quality(
        files=len(logs),
        bytes=sum(log.used_bytes for log in logs),
        missing_ranks=tuple(rank for rank in range(max(worlds, default=0)) if rank not in read_ranks),
        empty_files=tuple(log.path.name for log in logs if not log.used_bytes and not log.torn),
        unreadable_files=_unreadable(logs, parts, read_ranks),
        unsupported_files=launch.unsupported,
        undecodable_lines=_by_name(content.undecodable),
        torn_files=tuple(part.log.path.name for part in parts if part.log.torn),
        cut_ranks=tuple(sorted({part.rank for part in parts if part.log.clipped})),
        unknown_kinds=_by_name(content.unknown_kinds),
        dropped_records=dict(zip(dropped.index.tolist(), dropped.tolist(), strict=True)),
        unresolved_calls=int((content.frames["calls"]["op"] == UNKNOWN).sum()),
        headerless_ranks=tuple(rank for rank in content.ranks if rank not in content.headers),
        doubled_ranks=launch.doubled,
        nameless_files=launch.nameless,
        world_sizes=tuple(worlds),
        run=launch.run,
        other_runs=launch.other_runs,
        older_attempts=launch.older_attempts,
        clock_error_ns=content.agreement.error_ns,
        clock_corrections_ns={rank: shift for rank, shift in sorted(content.agreement.added_ns.items()) if shift},
        window_bytes=window,
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
            f"no log in {path} says which rank it is of{_first_words(logs)}",
            "processes learn their rank when they join a group, or from RANK and WORLD_SIZE",
        )
    return DistdiagError(f"no readable record in {path}", "distdiag's logs hold one JSON object on each line")


MOST_MESSAGE = 100


def _first_words(logs: Sequence[LogFile]) -> str:
    """Return the exception that ended a process first, as part of a sentence; nothing where none tells of one."""
    told: list[tuple[int, str]] = []
    for log in logs:
        for line in last_lines(log):
            with contextlib.suppress(msgspec.DecodeError, ValueError):
                record = events.decode(line)
                if isinstance(record, events.Fault) and record.fault == "exception" and record.type:
                    first, *more = (record.message or "").strip().splitlines() or [""]
                    message = more[-1] if more and first.endswith(":") else first  # what a launcher quotes stands last
                    told.append((record.time_ns, f"; {log.stem} raised {record.type}: {message[:MOST_MESSAGE]}"))
    return min(told)[1] if told else ""


def _unreadable(logs: Sequence[LogFile], parts: Sequence[Part], ranks: Collection[int]) -> tuple[str, ...]:
    """Return the files that hold something, but no record."""
    nothing_whole = {log.path.name for log in logs if log.torn and not log.used_bytes}
    return tuple(sorted(nothing_whole | {part.log.path.name for part in parts if part.rank not in ranks}))


def _by_name(count: Counter[str]) -> dict[str, int]:
    return {name: number for name, number in sorted(count.items()) if number > 0}
