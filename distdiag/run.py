"""A directory of logs as a ``Run``: frames with declared columns on one clock, and what is wrong with the data."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ibis
import numpy as np
import pandas as pd

from distdiag import _calls, _clocks, _crashes, events
from distdiag._crashes import user_frames
from distdiag._frames import CALL_COLUMNS, CRASH_COLUMNS, TIMES, Ranked, empty, frame, frame_of
from distdiag._logfiles import LogFile, discover
from distdiag._processes import FileContent, Process, by_rank, contents_of, newest_launch, processes_of
from distdiag._quality import Quality
from distdiag._steps import merged_steps
from distdiag.engine import FILE, Engine
from distdiag.errors import DistdiagError

__all__ = ["CALL_COLUMNS", "CRASH_COLUMNS", "Quality", "Run", "load", "user_frames"]

_KINDS = {events.kind_of(kind): kind for kind in events.EVENTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The logs of one launch. Moments are wall-clock nanoseconds, ``path`` columns are keys of ``paths``."""

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
        """Return all records of a kind, window or not, as a lazy Ibis table with the column ``rank``.

        Times are the raw monotonic clock of each rank, paths and signatures its own numbers.
        """
        table = self.engine.read(self.files, _KINDS[kind])
        ranks = ibis.array(list(self.file_ranks))
        kept = table.drop("rank") if "rank" in table.columns else table
        return kept.mutate(rank=ranks[kept[FILE]]).drop(FILE)


def load(path: Path) -> Run:
    """Read a directory of logs, or one log.

    Raises ``DistdiagError`` when there is nothing that could be analysed: no such path, no log in it, no
    readable record, only logs of a newer schema.
    """
    logs = discover(path)
    used = [log for log in logs if log.used_bytes]
    if not used:
        raise DistdiagError(f"all {len(logs)} logs in {path} are empty", "did the processes get as far as install()?")
    engine = Engine()
    contents = contents_of(used, engine.other_lines([log.path for log in used]))
    processes = processes_of(contents)
    chosen = by_rank(newest_launch(processes))
    if not chosen:
        raise _nothing_to_analyse(path, processes)
    selected = {rank: owners[0] for rank, owners in chosen.items()}
    return _Reading(path=path, engine=engine, logs=logs, processes=processes, chosen=selected).run()


def _nothing_to_analyse(path: Path, processes: Sequence[Process]) -> DistdiagError:
    newer = sorted({s for p in processes if not p.supported for content in p.files for s in content.schemas})
    if newer:
        return DistdiagError(
            f"the logs in {path} are of schema {', '.join(newer)}; this version reads {events.SCHEMA}",
            "upgrade distdiag to the version that recorded them",
        )
    if any(process.headers for process in processes):
        return DistdiagError(
            f"no log in {path} says which rank it is of", "start the ranks with torchrun, or set RANK and WORLD_SIZE"
        )
    return DistdiagError(
        f"no readable record in {path}", "are these logs of distdiag? they hold one JSON object a line"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The files of the chosen launch on their way to frames."""

    path: Path
    engine: Engine
    logs: tuple[LogFile, ...]
    processes: tuple[Process, ...]
    chosen: Mapping[int, Process]

    def run(self) -> Run:
        """Return everything as a ``Run``."""
        records = {kind: list(self._ranked(kind)) for kind in events.EVENTS}
        headers = {rank: _merged(process.headers) for rank, process in self.chosen.items() if process.headers}
        offsets = _clocks.wall_offsets(headers)
        unknown_clock = sorted(offsets.values())[len(offsets) // 2] if offsets else 0
        offsets = {rank: offsets.get(rank, unknown_clock) for rank in self.chosen}
        paths, path_ids = _interned(records[events.Path])
        calls, damaged = self._call_frame(records, path_ids, offsets)
        added, clock_error = _clocks.corrections(calls, offsets)
        calls = _shifted(calls, added)
        offsets = {rank: offset + added.get(rank, 0) for rank, offset in offsets.items()}

        def framed(kind: type[events.Event]) -> pd.DataFrame:
            return frame_of(kind, records[kind], path_ids, offsets)

        world = max((h.world_size for h in headers.values() if h.world_size is not None), default=None)
        missing = tuple(rank for rank in range(world or 0) if rank not in self.chosen)
        contents = [content for process in self.chosen.values() for content in process.files]
        return Run(
            ranks=tuple(sorted(self.chosen)),
            world_size=world,
            missing=missing,
            attempt=next(iter(self.chosen.values())).attempt,
            headers=frame_of(events.Header, [Ranked(rank=r, record=h) for r, h in headers.items()], {}, offsets),
            groups=framed(events.Group).drop_duplicates(["rank", "group", "ranks"], ignore_index=True),
            calls=calls,
            steps=merged_steps(framed(events.Step)),
            phases=framed(events.Phase),
            batches=framed(events.Batch),
            memory=framed(events.Memory),
            numerics=framed(events.Numerics),
            faults=framed(events.Fault),
            stacks=framed(events.Stack),
            pulses=framed(events.Pulse),
            gc=framed(events.GarbageCollection),
            compiles=framed(events.Compile),
            decisions=framed(events.Decision),
            dropped=framed(events.Dropped),
            crashes=self._crash_frame(),
            paths=paths,
            quality=self._quality(records, missing, damaged, calls, clock_error, added, headers),
            files=tuple(content.log.path for content in contents),
            file_ranks=tuple(rank for rank, process in self.chosen.items() for _ in process.files),
            engine=self.engine,
        )

    def _ranked(self, kind: type[events.Event]) -> Iterator[Ranked]:
        for rank, process in self.chosen.items():
            for content in process.files:
                for record in content.records:
                    if type(record) is kind:
                        yield Ranked(rank=rank, record=record)

    def _contents(self) -> list[tuple[int, FileContent]]:
        return [(rank, content) for rank, process in self.chosen.items() for content in process.files]

    def _call_frame(
        self,
        records: Mapping[type[events.Event], Sequence[Ranked]],
        path_ids: Mapping[tuple[int, int], int],
        offsets: Mapping[int, int],
    ) -> tuple[pd.DataFrame, Counter[str]]:
        damaged: Counter[str] = Counter()
        calls = self._columns(events.Call, ("call", "signature", "seq", "step", "start_ns"), offsets, damaged)
        dones = self._columns(events.Done, ("call", "end_ns"), offsets, damaged)
        signatures = _calls.signatures_of(records[events.Signature], path_ids, _memberships(records[events.Group]))
        return _calls.calls_frame(calls, dones, signatures), damaged

    def _columns(
        self,
        kind: type[events.Event],
        required: Sequence[str],
        offsets: Mapping[int, int],
        damaged: Counter[str],
    ) -> _calls.Columns:
        """Return the rows of a bulk kind; rows without a required field are damaged lines."""
        contents = self._contents()
        arrow = self.engine.arrow(self.engine.read([content.log.path for _, content in contents], kind))
        whole = np.ones(arrow.num_rows, dtype=bool)
        for name in required:
            if arrow[name].null_count:
                whole &= ~np.asarray(arrow[name].is_null().to_numpy())
        files = np.asarray(arrow[FILE].to_numpy(), dtype=np.int64)
        for file, count in Counter(files[~whole].tolist()).items():
            damaged[contents[file][1].log.path.name] += count
        if not whole.all():
            arrow = arrow.take(np.flatnonzero(whole))
            files = files[whole]
        ranks = np.array([rank for rank, _ in contents], dtype=np.int64)
        shifts = np.array([offsets[rank] for rank, _ in contents], dtype=np.int64)
        return _calls.Columns(ranks=ranks[files], offsets=shifts[files], arrow=arrow)

    def _crash_frame(self) -> pd.DataFrame:
        directory = self.path if self.path.is_dir() else self.path.parent
        owners = {(process.stem, process.attempt): rank for rank, process in self.chosen.items()}
        rows: list[tuple[int, _crashes.Crash]] = []
        for file in sorted(directory.glob("*.crash.txt")):
            match = _crashes.CRASH_NAME.fullmatch(file.name)
            owner = owners.get((match["stem"], int(match["attempt"] or 0))) if match else None
            if owner is not None:
                rows += [(owner, crash) for crash in _crashes.crashes_in(file)]
        if not rows:
            return empty(CRASH_COLUMNS)
        values = {name: [getattr(crash, name) for _, crash in rows] for name in ("kind", "thread", "frames")}
        return frame(CRASH_COLUMNS, {"rank": [rank for rank, _ in rows], **values})

    def _quality(
        self,
        records: Mapping[type[events.Event], Sequence[Ranked]],
        missing: tuple[int, ...],
        damaged: Counter[str],
        calls: pd.DataFrame,
        clock_error: int | None,
        corrections: Mapping[int, int],
        headers: Mapping[int, events.Header],
    ) -> Quality:
        dropped: Counter[int] = Counter()
        for item in records[events.Dropped]:
            if isinstance(item.record, events.Dropped):
                dropped[item.rank] += item.record.records
        kinds: Counter[str] = Counter()
        undecodable = Counter(damaged)
        for _, content in self._contents():
            kinds += content.unknown_kinds
            undecodable[content.log.path.name] += content.undecodable
        return Quality(
            files=len(self.logs),
            bytes=sum(log.used_bytes for log in self.logs),
            missing_ranks=missing,
            empty_files=tuple(log.path.name for log in self.logs if not log.used_bytes),
            undecodable_lines={name: count for name, count in sorted(undecodable.items()) if count},
            unknown_kinds=dict(sorted(kinds.items())),
            dropped_records=dict(sorted(dropped.items())),
            unresolved_calls=int((calls["op"] == _calls.UNKNOWN).sum()),
            headerless_ranks=tuple(rank for rank in self.chosen if rank not in headers),
            run=next((process.run for process in self.chosen.values() if process.run), None),
            clock_error_ns=clock_error,
            clock_corrections_ns={rank: shift for rank, shift in sorted(corrections.items()) if shift},
        )


def _merged(headers: Sequence[events.Header]) -> events.Header:
    """Return the first header, with the rank and world that a later one may know."""
    first, last = headers[0], headers[-1]
    merged = events.Header(**{name: getattr(first, name) for name in first.__struct_fields__})
    if merged.rank is None:
        merged.rank, merged.world_size = last.rank, last.world_size
    return merged


def _interned(ranked: Sequence[Ranked]) -> tuple[dict[int, tuple[str, ...]], dict[tuple[int, int], int]]:
    """Return the run's paths by id, and the id of each (rank, path number); ids follow the frames' order."""
    frames = {
        (item.rank, item.record.path): tuple(item.record.frames)
        for item in ranked
        if isinstance(item.record, events.Path)
    }
    ids = {path: number for number, path in enumerate(sorted({*frames.values(), ()}))}
    return {number: path for path, number in ids.items()}, {key: ids[path] for key, path in frames.items()}


def _memberships(ranked: Sequence[Ranked]) -> "_Members":
    return _Members(
        {
            (item.rank, item.record.group): tuple(item.record.ranks)
            for item in ranked
            if isinstance(item.record, events.Group)
        }
    )


class _Members:
    """Members of a group as a rank knows it, shared between equal tuples."""

    def __init__(self, known: Mapping[tuple[int, str], tuple[int, ...]]) -> None:
        shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._known = {key: shared.setdefault(members, members) for key, members in known.items()}

    def __call__(self, rank: int, group: str) -> tuple[int, ...] | None:
        return self._known.get((rank, group))


def _shifted(calls: pd.DataFrame, added: Mapping[int, int]) -> pd.DataFrame:
    if not any(added.values()):
        return calls
    shift = calls["rank"].map(lambda rank: added.get(rank, 0)).astype("int64")
    return calls.assign(**{name: calls[name] + shift for name in TIMES if name in calls})
