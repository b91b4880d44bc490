"""Writes the logs of a directory as a packed run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from distdiag import events
from distdiag.deferred import deferred
from distdiag.engine import Engine, readable, sql
from distdiag.engine.packs import BULK_KINDS, MANIFEST, OTHER, Manifest, PackedFile, Told
from distdiag.errors import DistdiagError
from distdiag.run.launch import choose, header_line, moment_line, processes_of
from distdiag.run.logfiles import LogFile, discover
from distdiag.run.processes import ranks_of
from distdiag.run.window import HEAD_BYTES, starts_of, window_bytes

if TYPE_CHECKING:
    import duckdb
else:
    duckdb = deferred("duckdb")

RANKS_TOGETHER = 64
"""Ranks in one file of a kind: few files for thousands of ranks, and some to leave out when only few are asked for."""
CRASHES = "*.crash.txt"
"""What recording leaves beside logs, which stays what it is."""
COUNTED_BYTES = 16 << 20
_KINDS = {events.kind_of(kind): kind for kind in events.EVENTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What was written."""

    files: int
    ranks: int
    read_bytes: int
    written_bytes: int


def pack(logs: Path, folder: Path, told: Told | None = None) -> Packed:
    """Write the logs in ``logs`` as Parquet into ``folder``, which must not hold anything yet.

    ``told`` is what the report says of the sources where the logs were made of other files. Raises ``DistdiagError``
    where there is no log, or the folder holds something.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DistdiagError(f"{folder} is there already", "name a new folder with -o")
    found = discover(logs)
    ranks = {file.path: process.rank for process in processes_of(found) for file in process.files}
    folder.mkdir(parents=True, exist_ok=True)
    kinds: set[str] = set()
    for name, numbers in _by_ranks(found, ranks).items():
        kinds |= _write(folder, name, [(number, found[number], ranks.get(found[number].path)) for number in numbers])
    for crash in logs.glob(CRASHES) if logs.is_dir() else ():
        shutil.copy(crash, folder / crash.name)
    manifest = Manifest(kinds=tuple(sorted(kinds)), files=_described(found), told=told)
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    return Packed(
        files=len(found),
        ranks=len({rank for rank in ranks.values() if rank is not None}),
        read_bytes=sum(log.used_bytes for log in found),
        written_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    )


def _by_ranks(logs: Sequence[LogFile], ranks: Mapping[Path, int | None]) -> dict[str, list[int]]:
    """Return the numbers of the files that hold something, by the name of their range of ranks."""
    found: dict[str, list[int]] = {}
    for number, log in enumerate(logs):
        if log.used_bytes:
            rank = ranks.get(log.path)
            first = None if rank is None else rank - rank % RANKS_TOGETHER
            name = "unknown" if first is None else f"{first:05d}-{first + RANKS_TOGETHER - 1:05d}"
            found.setdefault(name, []).append(number)
    return found


def _write(folder: Path, ranks: str, logs: Sequence[tuple[int, LogFile, int | None]]) -> set[str]:
    """Write the records of a range of ranks; return their kinds."""
    engine = Engine()
    paths = [_whole_lines(engine, log) for _, log, _ in logs]
    with tempfile.TemporaryDirectory(prefix="distdiag-", dir=folder) as directory, duckdb.connect() as database:
        lines = f"read_parquet({sql.text(directory + '/lines.parquet')})"
        with readable():
            database.execute(f"COPY ({_numbered(paths)}) TO {sql.text(directory + '/lines.parquet')} (FORMAT parquet)")
            firsts = dict(database.execute(f"SELECT place, min(row) FROM {lines} GROUP BY place").fetchall())
            kinds = {kind for (kind,) in database.execute(f"SELECT DISTINCT kind FROM {lines}").fetchall()}
            for kind in sorted(kinds):
                # Readers make columns of these names: ``ranks`` would hide the members of groups.
                target = folder / f"kind={kind}" / f"rank_range={ranks}"
                target.mkdir(parents=True)
                database.execute(
                    f"COPY ({_records(lines, kind, logs, firsts)}) TO {sql.text(str(target / 'records.parquet'))} "
                    "(FORMAT parquet, COMPRESSION zstd)"
                )
    return kinds


def _whole_lines(engine: Engine, log: LogFile) -> Path:
    """Return a file of the whole lines of a log, without what a process left behind them."""
    if log.used_bytes == log.size_bytes:
        return log.path
    with log.path.open("rb") as file:
        return engine.spool(log.path.name, file.read(log.used_bytes))


def _numbered(paths: Sequence[Path]) -> str:
    """Return a query for all lines in order: place of the file, running number, kind and text."""
    own = [f"WHEN {sql.is_of_kinds((kind,))} THEN {sql.text(name)}" for name, kind in _KINDS.items()]
    few = sql.listed(sql.text(name) for name in _KINDS if name not in BULK_KINDS)
    unusual = f"WHEN list_contains({few}, json ->> 'kind') THEN json ->> 'kind'"
    return (
        f"SELECT CAST(file_index AS BIGINT) AS place, row_number() OVER () AS row, {sql.LINE} AS line, "
        f"CASE {' '.join(own)} {unusual} ELSE {sql.text(OTHER)} END AS kind FROM {sql.lines_of(paths)}"
    )


def _records(lines: str, kind: str, logs: Sequence[tuple[int, LogFile, int | None]], firsts: Mapping[int, int]) -> str:
    """Return a query for the records of a kind, in the order of files and lines."""
    of_file = {
        "file": [str(number) for number, _, _ in logs],
        "first": [str(firsts.get(place, 0)) for place in range(len(logs))],
        "rank": ["NULL" if rank is None else str(rank) for _, _, rank in logs],
    }
    looked_up = {name: f"CAST({sql.listed(values)} AS BIGINT[])[place + 1]" for name, values in of_file.items()}
    columns = [f"{looked_up['file']} AS file", f"row - {looked_up['first']} AS row"]
    known = _KINDS.get(kind)
    has_rank = known is not None and "rank" in known.__struct_fields__
    columns += [] if has_rank else [f"{looked_up['rank']} AS rank"]
    columns += [] if known is None or not known.__struct_fields__ else [sql.selected(known)]
    columns += [] if kind in BULK_KINDS else ["line AS record"]
    made = "" if known is None else f", from_json(CAST(line AS JSON), {sql.declared(known)}) AS record"
    source = f"SELECT place, row, line{made} FROM {lines} WHERE kind = {sql.text(kind)}"
    return f"SELECT {', '.join(columns)} FROM ({source})"


def _described(logs: Sequence[LogFile]) -> tuple[PackedFile, ...]:
    cuts = _cuts(logs)
    return tuple(
        PackedFile(
            name=log.path.name,
            used_bytes=log.used_bytes,
            torn=log.torn,
            header=_text(header_line(log) if log.used_bytes else None),
            last=_text(moment_line(log) if log.used_bytes else None),
            head_rows=cuts.get(log.path, (0, 0))[0],
            newest_row=cuts.get(log.path, (0, 0))[1],
        )
        for log in logs
    )


def _text(line: bytes | None) -> str | None:
    return None if line is None else line.decode(errors="replace")


def _cuts(logs: Sequence[LogFile]) -> dict[Path, tuple[int, int]]:
    """Return the rows of the head, and the first row of the newest part, of each file that is too long."""
    launch = choose(ranks_of(processes_of(logs)))
    window = window_bytes(launch.members) if launch.members else None
    starts = (start for process in launch.members.values() for start in starts_of(process.files, window))
    return {
        log.path: (_lines_before(log, HEAD_BYTES), _lines_before(log, start) + 1)
        for log, start in starts
        if start > HEAD_BYTES
    }


def _lines_before(log: LogFile, end: int) -> int:
    """Return how many lines end within the first bytes of a file."""
    return sum(chunk.count(b"\n") for chunk in _chunks(log.path, end))


def _chunks(path: Path, end: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while end > 0 and (chunk := file.read(min(end, COUNTED_BYTES))):
            end -= len(chunk)
            yield chunk
