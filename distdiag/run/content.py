"""What the chosen parts of the logs hold: frames on one clock, with call sites and groups that compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distdiag import events
from distdiag.allocation import give_back
from distdiag.deferred import deferred
from distdiag.engine import FILE, Engine
from distdiag.errors import DistdiagError
from distdiag.run.calls import UNKNOWN, calls_frame, signatures_of
from distdiag.run.clocks import Agreement, agreement, clocks_of
from distdiag.run.frames import CALL_COLUMNS, GAP, TIMES, Column, Columns, Ranked, Rows, constant, frame_of
from distdiag.run.held_rows import bulk_held, held_parts, records_held
from distdiag.run.identity import Groups, Interned, Paths, interned, told_apart
from distdiag.run.records import Records, decode_lines
from distdiag.run.window import Part

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")


_NEEDED: Mapping[type[events.Event], tuple[str, ...]] = {
    events.Call: ("call", "signature", "seq", "step", "start_ns"),
    events.Done: ("call", "end_ns"),
}


def read_bulk(engine: Engine, parts: Sequence[Part]) -> tuple[dict[type[events.Event], Rows], Counter[str]]:
    """Return the rows of the bulk kinds, and by file name how many of them lack a field that they need."""
    damaged: Counter[str] = Counter()
    return {kind: _rows(engine, kind, parts, damaged) for kind in _NEEDED}, damaged


def _rows(engine: Engine, kind: type[events.Event], parts: Sequence[Part], damaged: Counter[str]) -> Rows:
    arrow = engine.rows([part.path for part in parts], kind)
    broken = np.zeros(arrow.num_rows, dtype=bool)
    for name in _NEEDED[kind]:
        if arrow[name].null_count:
            broken |= np.asarray(arrow[name].is_null().to_numpy())
    files = np.asarray(arrow[FILE].to_numpy(), dtype=np.int64)
    if broken.any():
        damaged.update(parts[file].log.path.name for file in files[broken].tolist())
        arrow = arrow.take(np.flatnonzero(~broken))
        files = files[~broken]
    names = [name for name in arrow.column_names if name != FILE]
    return Rows(files=files, columns={name: _column(arrow[name]) for name in names})


def _column(column: Any) -> Column:
    """Return a column of an Arrow table."""
    if column.null_count == len(column) and str(column.type) != "bool":  # most logs leave most fields out
        absent = 0 if str(column.type) == "int64" else GAP
        return Column(values=constant(absent, len(column)), gaps=constant(True, len(column)))
    if str(column.type) in ("string", "large_string"):
        coded = column.dictionary_encode().combine_chunks()
        codes = coded.indices.fill_null(GAP).to_numpy(zero_copy_only=False)
        return Column(values=np.asarray(codes, dtype=np.int64), texts=tuple(coded.dictionary.to_pylist()))
    if str(column.type) == "bool":
        return Column(values=np.asarray(column.to_numpy(zero_copy_only=False), dtype=bool))
    if not column.null_count:
        return Column(values=np.asarray(column.to_numpy(), dtype=np.int64))
    gaps = np.asarray(column.is_null().to_numpy(), dtype=bool)
    return Column(values=np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64), gaps=gaps)


def merged_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per rank and step: the first known value of each column, facts and rollups of all records."""
    ordered = steps.sort_values(["rank", "step"], kind="stable", ignore_index=True)
    repeated = ordered.duplicated(["rank", "step"], keep=False)
    if not repeated.any():
        return ordered
    several = ordered[repeated].groupby(["rank", "step"], sort=True)
    merged = several.first().reset_index()
    for name in ("facts", "rollups"):
        united = several[name].agg(_united).reset_index(drop=True)
        merged[name] = united.astype("object")
    merged = merged[ordered.columns].astype(ordered.dtypes.to_dict())
    both = pd.concat([ordered[~repeated], merged])
    return both.sort_values(["rank", "step"], kind="stable", ignore_index=True)


def _united(values: pd.Series[Any]) -> dict[str, Any]:
    united: dict[str, Any] = {}
    for value in values:
        united.update(value)
    return united


FRAMES: Mapping[str, type[events.Event]] = {
    "groups": events.Group,
    "steps": events.Step,
    "phases": events.Phase,
    "batches": events.Batch,
    "loaders": events.Loader,
    "memory": events.Memory,
    "numerics": events.Numerics,
    "wrappers": events.Wrapper,
    "faults": events.Fault,
    "stacks": events.Stack,
    "pulses": events.Pulse,
    "gc": events.GarbageCollection,
    "compiles": events.Compile,
    "replays": events.Replay,
    "statuses": events.Status,
    "decisions": events.Decision,
    "caught": events.Caught,
    "dropped": events.Dropped,
}
"""Frames that hold the records of one kind as they are."""
_INTERNED = (events.Path, events.Signature, events.Group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Everything that was read."""

    ranks: tuple[int, ...]
    headers: Mapping[int, events.Header]
    frames: Mapping[str, pd.DataFrame]
    """``calls``, ``headers`` and those of ``FRAMES``."""
    paths: Mapping[int, tuple[str, ...]]
    undecodable: Counter[str]
    """Damaged lines by file name."""
    unknown_kinds: Counter[str]
    agreement: Agreement


def read(engine: Engine, parts: Sequence[Part]) -> Content:
    """Read parts of logs.

    Raises ``DistdiagError`` where one log holds the records of several processes.
    """
    records, bulk = _all_records(engine, parts)
    headers = _headers(records)
    clocks = clocks_of(headers, {part.rank for part in parts})
    offsets = {rank: clock.offset_ns for rank, clock in clocks.items()}
    calls, paths = _calls(engine, parts, records, bulk, offsets)
    calls = told_apart(calls, frame_of(events.Group, records.by_kind[events.Group], paths.id_of, offsets))
    del bulk  # as large as the frame that was made of it
    give_back()
    agreed = agreement(calls, clocks)
    offsets = {rank: offset + agreed.added_ns.get(rank, 0) for rank, offset in offsets.items()}
    frames = {name: frame_of(kind, records.by_kind[kind], paths.id_of, offsets) for name, kind in FRAMES.items()}
    of_ranks = [Ranked(rank=rank, record=header) for rank, header in headers.items()]
    frames |= {
        "calls": _shifted(calls, agreed.added_ns),
        "headers": frame_of(events.Header, of_ranks, paths.id_of, offsets),
        "groups": _each_once(frames["groups"]),
        "steps": merged_steps(frames["steps"]),
    }
    return Content(
        ranks=tuple(sorted(records.ranks | set(calls["rank"].unique().tolist()))),
        headers=headers,
        frames=frames,
        paths=paths.frames,
        undecodable=records.undecodable,
        unknown_kinds=records.unknown_kinds,
        agreement=agreed,
    )


def _all_records(engine: Engine, parts: Sequence[Part]) -> tuple[Records, Mapping[type[events.Event], Rows]]:
    held = held_parts(parts)
    if held is not None:
        return records_held(held), bulk_held(held)
    lines = engine.other_lines([part.path for part in parts])
    with ThreadPoolExecutor(max_workers=1) as pool:
        reading = pool.submit(read_bulk, engine, parts)  # while Python decodes the rest
        records = decode_lines(parts, lines)
        bulk, damaged = reading.result()
    records.undecodable.update(damaged)
    return records, bulk


def _each_once(groups: pd.DataFrame) -> pd.DataFrame:
    """Return groups without those that each segment of a log repeats; the newest of those that were made again."""
    members = groups["ranks"].map(Interned().number)
    repeated = groups.assign(members=members).duplicated(["rank", "group", "members"], keep="last")
    return groups[~repeated].reset_index(drop=True)


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


def _calls(
    engine: Engine,
    parts: Sequence[Part],
    records: Records,
    bulk: Mapping[type[events.Event], Rows],
    offsets: Mapping[int, int],
) -> tuple[pd.DataFrame, Paths]:
    """Return the calls and the paths of all records."""
    ranks = np.array([part.rank for part in parts], dtype=np.int64)
    shifts = np.array([offsets[part.rank] for part in parts], dtype=np.int64)
    calls, dones = (
        Columns(ranks=ranks[rows.files], offsets=shifts[rows.files], named=rows.columns)
        for rows in (bulk[events.Call], bulk[events.Done])
    )

    def joined() -> tuple[pd.DataFrame, Paths]:
        paths = interned(records.by_kind[events.Path])
        groups = Groups(records.by_kind[events.Group])
        return calls_frame(calls, dones, signatures_of(records.by_kind[events.Signature], paths, groups)), paths

    frame, paths = joined()
    cut = [part for part in parts if part.cut]
    if cut and (frame["op"] == UNKNOWN).any():
        _add_interned(engine, cut, records)
        frame, paths = joined()
    return frame, paths


def _add_interned(engine: Engine, cut: Sequence[Part], records: Records) -> None:
    """Add the interned records that stand in the parts of files that were not read."""
    more = decode_lines(cut, engine.lines_of([part.log.path for part in cut], _INTERNED))
    for kind in _INTERNED:
        records.by_kind[kind] += more.by_kind[kind]


def _shifted(calls: pd.DataFrame, added: Mapping[int, int]) -> pd.DataFrame:
    if not any(added.values()):
        return calls
    ranks = calls["rank"].to_numpy()
    table = np.zeros(1 + max(int(ranks.max(initial=0)), *added), dtype=np.int64)  # not every rank has calls
    for rank, shift in added.items():
        table[rank] = shift
    return calls.assign(**{name: calls[name] + table[ranks] for name in CALL_COLUMNS if name in TIMES})
