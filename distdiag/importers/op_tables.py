"""Tables of measured operations, one row for each operation of each worker: what NDTimeline and tools like it write.

A worker is one data-parallel rank of one pipeline stage. Parquet and CSV are read alike; job facts (the size of the
world) come from the few ``key: value`` lines of a ``meta*.yaml`` beside the table.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distdiag.deferred import deferred
from distdiag.errors import DistdiagError
from distdiag.importers._contract import Measured
from distdiag.run import OPERATION_COLUMNS, Measurements
from distdiag.run.whole_steps import whole_steps

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
else:
    duckdb = deferred("duckdb")
    pd = deferred("pandas")

NAME = "operations"
PARQUET = b"PAR1"
SECOND_NS = 1e9
LIKE_OURS = 4
"""A table with as many of the required columns is meant to be one of operations."""
NO_MEANING = -1
LONGEST_SECONDS = 31 * 24 * 3600.0
"""What is longer was not counted in seconds."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "rank": ("rank",),
    "dp": ("dp_rank", "dp"),
    "stage": ("stage", "pp_rank", "pp"),
    "step": ("step",),
    "op": ("optype", "op"),
    "start": ("start_ts", "start"),
    "duration": ("duration",),
    "end": ("end_ts", "end"),
    "seq": ("seq_id", "seq"),
    "chunk": ("mc", "chunk"),
    "microbatch": ("mb_id", "microbatch"),
    "global_chunk": ("gmc", "global_chunk"),
}
"""What a column may be called, the usual name first. Moments and durations are seconds."""
REQUIRED = ("rank", "dp", "stage", "step", "op", "start")
MARKS = (*REQUIRED, "duration", "end")
_WHOLE = ("rank", "dp", "stage", "step", "seq", "chunk", "microbatch", "global_chunk")
_WORKER_STEP = ["dp", "stage", "step", "op"]
_META_KEYS = ("world_size", "dp_size", "pp_size")


def recognises(path: Path, head: bytes) -> bool:
    """Return whether a file is a table with the columns of operations, or the facts of the job beside one."""
    if head.startswith(PARQUET):
        try:
            return _is_meant(_columns(path))
        except DistdiagError:
            return True  # damaged: reading says how
    first = head.split(b"\n", 1)[0].decode("utf-8", errors="replace").strip("\ufeff\r ")
    return _is_meant([name.strip(' "') for name in first.split(",")]) or _is_meta(path)


def read(files: Sequence[Path]) -> Measured:
    """Return the operations of the one table among the files, times as whole nanoseconds.

    Steps in which operations are missing are left out, and a note says so. Raises ``DistdiagError`` where there is
    no table or more than one, where it is damaged or lacks columns, holds operations twice, or no step is whole.
    """
    tables = [file for file in files if not _is_meta(file)]
    if len(tables) != 1:
        raise _not_one(files, tables)
    table = tables[0]
    meta = _meta(table)
    operations = _operations(table)
    if operations.empty:
        raise DistdiagError(f"{table} holds no operation", "was the job measured at all?")
    _refuse_doubles(table, operations)
    whole = whole_steps(operations)
    if whole.operations.empty:
        raise DistdiagError(
            f"no step in {table} is whole: {whole.gap or 'no two steps hold the same operations'}",
            "a table has to hold every operation of every data-parallel rank and stage of a step",
        )
    notes = tuple(_notes(table, whole.left_out, whole.gap, whole.operations, meta))
    world = meta.get("world_size")
    return Measured(
        tables=Measurements(operations=whole.operations, world_size=world if world and world > 0 else None),
        notes=notes,
    )


def _notes(
    table: Path, left_out: Collection[int], gap: str | None, operations: pd.DataFrame, meta: Mapping[str, int]
) -> Iterator[str]:
    if left_out:
        number = len(left_out)
        why = gap or "their operations are not those of the other steps"
        yield f"{table.name}: {number} {'step was' if number == 1 else 'steps were'} left out: {why}"
    for key, column in (("dp_size", "dp"), ("pp_size", "stage")):
        told, found = meta.get(key), operations[column].nunique()
        if told is not None and told != found:
            yield f"{table.name}: {found} values of {column}, where the file beside it says {key} {told}"


def _not_one(files: Sequence[Path], tables: Sequence[Path]) -> DistdiagError:
    if not tables:
        return DistdiagError(f"{files[0]} tells of a job, but no table of its operations lies beside it")
    names = ", ".join(table.name for table in sorted(tables)[:4]) + (" …" if len(tables) > 4 else "")
    first = sorted(tables)[0]
    return DistdiagError(
        f"{len(tables)} tables of operations, each of a job of its own: {names}", f"name one: distdiag analyze {first}"
    )


def _operations(table: Path) -> pd.DataFrame:
    """Return the rows of a table in the declared columns."""
    names = _named(table)
    values = _values(table, names)
    start = np.array(values["start"], dtype=np.float64)
    duration = values["duration"] if "duration" in values else values["end"].astype(np.float64) - start
    _, step = np.unique(values["step"], return_inverse=True)
    begun = np.full(step.max(initial=-1) + 1, np.inf)
    np.minimum.at(begun, step, start)
    start -= begun[step]
    if max(start.max(initial=0), np.max(duration, initial=0)) > LONGEST_SECONDS:
        raise DistdiagError(f"steps in {table} take longer than a month", "times are seconds")
    frame = pd.DataFrame(
        {name: values[name].astype(np.int64) for name in _WHOLE if name in values}
        | {
            "op": pd.Categorical(values["op"]),
            "start_ns": np.rint(start * SECOND_NS).astype(np.int64),
            "duration_ns": np.rint(np.asarray(duration, dtype=np.float64) * SECOND_NS).astype(np.int64),
        }
    )
    if (frame["duration_ns"] < 0).any():
        raise DistdiagError(f"operations in {table} end before they start", "times are seconds, on one clock")
    if "seq" not in frame:
        frame["seq"] = frame.sort_values("start_ns", kind="stable").groupby(_WORKER_STEP, observed=True).cumcount()
    for name in ("chunk", "microbatch", "global_chunk"):
        if name not in frame:
            frame[name] = NO_MEANING
    return frame[list(OPERATION_COLUMNS)]


def _named(table: Path) -> dict[str, str]:
    """Return the table's own name of each column that there is."""
    there = _columns(table)
    names = {ours: next((name for name in known if name in there), "") for ours, known in NAMES.items()}
    missing = [NAMES[ours][0] for ours in REQUIRED if not names[ours]]
    if not names["duration"] and not names["end"]:
        missing.append("duration (or end)")
    if missing:
        raise DistdiagError(
            f"{table} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            f"a table of operations has {', '.join(NAMES[ours][0] for ours in REQUIRED)} and duration; "
            f"this one has {', '.join(there[:12])}",
        )
    return {ours: name for ours, name in names.items() if name}


def _values(table: Path, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the columns as arrays without gaps in them."""
    kinds = dict.fromkeys(_WHOLE, "BIGINT") | {"op": "VARCHAR"}
    selected = ", ".join(
        f"CAST({_quoted(name)} AS {kinds[ours]}) AS {ours}" if ours in kinds else f"{_quoted(name)} AS {ours}"
        for ours, name in names.items()
    )
    arrays = _fetched(table, f"SELECT {selected} FROM {_source(table)}")
    for ours, array in arrays.items():
        measure = ours not in (*_WHOLE, "op")
        if measure and array.dtype.kind not in "fiu":
            raise DistdiagError(f"{names[ours]} in {table} is not a number", "times are seconds")
        empty = np.ma.getmaskarray(array) | (~np.isfinite(np.ma.getdata(array)) if measure else False)
        if empty.any():
            raise DistdiagError(
                f"{int(empty.sum())} rows of {table} have no {names[ours]}", "was the table written to its end?"
            )
    return {ours: np.ma.getdata(array) for ours, array in arrays.items()}


def _refuse_doubles(table: Path, operations: pd.DataFrame) -> None:
    twice = operations[operations.duplicated([*_WORKER_STEP, "seq"])]
    if not twice.empty:
        row = twice.iloc[0]
        raise DistdiagError(
            f"{len(twice)} operations stand twice in {table}, the first: {row['op']} {row['seq']} of "
            f"data-parallel rank {row['dp']}, stage {row['stage']}, step {row['step']}",
            "one table holds one job: are two joined, or members of a tensor-parallel group that do the same?",
        )


def _is_meant(columns: Collection[str]) -> bool:
    return sum(any(name in columns for name in NAMES[ours]) for ours in MARKS) >= LIKE_OURS


def _columns(table: Path) -> list[str]:
    return list(_fetched(table, f"SELECT * FROM {_source(table)} LIMIT 0"))


def _fetched(table: Path, query: str) -> dict[str, Any]:
    """Return the columns of a query as arrays."""
    try:
        return dict(_database().sql(query).fetchnumpy())
    except duckdb.Error as error:
        raise DistdiagError(
            f"{table} cannot be read: {str(error).splitlines()[0]}", "was it copied whole? copy it again"
        ) from error


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def _source(table: Path) -> str:
    with table.open("rb") as opened:
        reader = "read_parquet" if opened.read(len(PARQUET)) == PARQUET else "read_csv"
    text = re.sub(r"[*?\[]", lambda mark: f"[{mark[0]}]", str(table)).replace("'", "''")  # no patterns
    return f"{reader}('{text}')" if reader == "read_parquet" else f"{reader}('{text}', header = true)"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_meta(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml") and sum(key in _pairs(path) for key in _META_KEYS) > 1


def _meta(table: Path) -> dict[str, int]:
    """Return the facts of the job from the file that is named like the table, else from the only one beside it."""
    beside = [file for file in sorted(table.parent.iterdir()) if _is_meta(file)]
    like = [file for file in beside if file.stem == table.stem.replace("trace", "meta")]
    chosen = like or (beside if len(beside) == 1 else [])
    facts = _pairs(chosen[0]) if chosen else {}
    return {key: int(value) for key, value in facts.items() if value.isdecimal()}


def _pairs(path: Path) -> dict[str, str]:
    """Return the ``key: value`` lines of a small file."""
    with path.open("rb") as opened:
        lines = opened.read(1 << 16).decode("utf-8", errors="replace").splitlines()
    return {key.strip(): value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon}
