"""Logs that are held in memory, as what a reading of their files would give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from distdiag import events
from distdiag.journal.segments import place_of
from distdiag.run import held
from distdiag.run.frames import GAP, Booleans, Column, Integers, Ranked, Rows, columns_of, constant
from distdiag.run.held import HeldLog
from distdiag.run.launch import Process
from distdiag.run.logfiles import LogFile
from distdiag.run.records import Records
from distdiag.run.window import Part


def processes_held(logs: Sequence[HeldLog]) -> tuple[Process, ...]:
    """Return the processes whose logs are held, in the order of their names."""
    return tuple(_process(log) for log in sorted(logs, key=lambda log: (place_of(log.name) or ("",))[:2]))


def _process(log: HeldLog) -> Process:
    stem, attempt, _ = place_of(log.name) or (log.name, log.attempt, 0)
    file = LogFile(
        path=Path(log.name),
        stem=stem,
        attempt=attempt,
        segment=0,
        named_rank=log.rank,
        size_bytes=log.size,
        used_bytes=log.size,
        torn=False,
        held=log,
    )
    offset = log.header.wall_ns - log.header.monotonic_ns
    return Process(
        stem=stem,
        attempt=attempt,
        files=(file,),
        header=log.header,
        schema=log.header.schema,
        end_ns=log.last_ns + offset,
    )


def held_parts(parts: Sequence[Part]) -> list[HeldLog] | None:
    """Return the logs of parts that are held; None where they are files."""
    logs = [part.log.held for part in parts if part.log.held is not None]
    return logs if len(logs) == len(parts) else None


def records_held(logs: Sequence[HeldLog]) -> Records:
    """Return all records but calls and their ends."""
    records = Records(by_kind={kind: [] for kind in events.EVENTS}, undecodable=Counter(), unknown_kinds=Counter())
    for log in logs:
        records.ranks.add(log.rank)
        for record in log.records:
            records.by_kind[type(record)].append(Ranked(rank=log.rank, record=record))
    return records


def bulk_held(logs: Sequence[HeldLog]) -> dict[type[events.Event], Rows]:
    """Return the rows of calls and of their ends."""
    return {
        events.Call: _rows(events.Call, [log.calls for log in logs]),
        events.Done: _rows(events.Done, [log.dones for log in logs]),
    }


def _rows(kind: type[events.Event], logs: Sequence[held.Rows]) -> Rows:
    sizes = [len(rows) for rows in logs]
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    columns = {
        name: _texts(logs, name, defaults[name]) if dtype == "object" else _numbers(logs, name, dtype, defaults[name])
        for name, dtype in columns_of(kind).items()
        if name != "rank"
    }
    return Rows(files=np.repeat(np.arange(len(logs), dtype=np.int64), sizes), columns=columns)


def _numbers(logs: Sequence[held.Rows], name: str, dtype: str, default: Any) -> Column:
    plain = bool if dtype in ("bool", "boolean") else np.int64
    if not any(name in rows.numbers for rows in logs):
        size = sum(map(len, logs))
        return Column(
            values=constant(plain(default or 0), size), gaps=constant(True, size) if default is None else None
        )
    values = [rows.numbers[name] if name in rows.numbers else constant(plain(default or 0), len(rows)) for rows in logs]
    return Column(
        values=np.concatenate(values, dtype=plain, casting="unsafe"),
        gaps=None if dtype in ("int64", "bool") else _gaps(logs, name, default),
    )


def _gaps(logs: Sequence[held.Rows], name: str, default: Any) -> Booleans | None:
    """Return where a column has gaps, None where it has none."""
    told = [name in rows.numbers or default is not None for rows in logs]
    if all(told) and not any(name in rows.gaps for rows in logs):
        return None
    gaps = [rows.gaps.get(name, constant(not here, len(rows))) for rows, here in zip(logs, told, strict=True)]
    found: Booleans = np.concatenate(gaps, dtype=bool)
    return found if found.any() else None


def _texts(logs: Sequence[held.Rows], name: str, default: Any) -> Column:
    known: dict[str, int] = {} if default is None or default is msgspec.NODEFAULT else {default: 0}
    absent = GAP if not known else 0
    if not any(name in rows.texts for rows in logs):
        return Column(values=constant(absent, sum(map(len, logs))), texts=tuple(known))
    values: list[Integers] = []
    for rows in logs:
        codes, texts = rows.texts.get(name, (constant(absent, len(rows)), ()))
        table = np.array([*(known.setdefault(text, len(known)) for text in texts), GAP], dtype=np.int64)
        values.append(table[codes] if texts else codes)
    return Column(values=np.concatenate(values, dtype=np.int64), texts=tuple(known))
