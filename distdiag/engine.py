"""The query engine: logs as Ibis tables on an embedded DuckDB, with the columns that the records declare."""

import contextlib
import itertools
import json
import shutil
import tempfile
import threading
import types
import typing
import weakref
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import ibis
import msgspec
import pandas as pd
import pyarrow as pa

from distdiag import events
from distdiag.errors import DistdiagError

FILE = "file"
"""Column that every table has beside the record's own: position of the file in the list that was read."""
LINES_AT_ONCE = 10_000
MAX_LINE_BYTES = 64 << 20
"""Longest line read; DuckDB's own default of 16 MiB is shorter than a segment may be."""

_SCALARS: dict[Any, tuple[str, str]] = {
    int: ("BIGINT", "int64"),
    float: ("DOUBLE", "float64"),
    bool: ("BOOLEAN", "boolean"),
    str: ("VARCHAR", "string"),
}
_JSON = ("VARCHAR", "string")
"""Nested and free values stay JSON text: analysis that needs them works on a few records, not on whole runs."""

_IN_MEMORY = {
    "int64": "int64",
    "Int64": "int64",
    "float64": "float64",
    "bool": "boolean",
    "object": "string",
    "str": "string",
}

BULK: tuple[type[events.Event], ...] = (events.Call, events.Done)
"""The kinds that make up nearly all of a log; all others are few enough to be decoded one by one."""


class Engine:
    """An in-memory database that reads logs where they lie."""

    def __init__(self) -> None:
        """Make an engine; its database starts when it is first asked, and lives as long as this object."""
        self._names = itertools.count()
        self._spooled: Path | None = None
        self._database: Any = None
        self._starting = threading.Lock()

    @property
    def _ibis(self) -> Any:
        with self._starting:  # a log is read by two threads
            if self._database is None:
                self._database = ibis.duckdb.connect()
            return self._database

    def spool(self, name: str, data: bytes) -> Path:
        """Put part of a log into a temporary file and return its path."""
        if self._spooled is None:
            self._spooled = Path(tempfile.mkdtemp(prefix="distdiag-"))
            weakref.finalize(self, shutil.rmtree, self._spooled, ignore_errors=True)
        path = self._spooled / name
        path.write_bytes(data)
        return path

    def read(self, files: Sequence[Path], kind: type[events.Event], only: Collection[str] | None = None) -> ibis.Table:
        """Return the records of one kind as a lazy table; lines of other kinds and damaged lines are no rows.

        Fields that a log leaves out hold their default, or NULL where that is None. ``only`` these fields are read.
        """
        fields = [field for field in msgspec.structs.fields(kind) if only is None or field.name in only]
        columns = {field.name: _types_of(field.type) for field in fields}
        declared = json.dumps({name: sql for name, (sql, _) in columns.items()})
        selected = ", ".join(_selected(field) for field in fields)
        # Telling lines apart as text first and giving only those of the kind their columns is twice as fast as
        # ``read_json``, which gives all lines columns.
        query = (
            f"SELECT {FILE}, {selected} FROM (SELECT CAST(file_index AS BIGINT) AS {FILE}, "
            f"from_json(json, {_text(declared)}) AS record "
            f"FROM read_ndjson_objects({_list(files)}, {_OPTIONS}) WHERE {_of_kind(kind)})"
        )
        schema = {FILE: "int64"} | {name: type_ for name, (_, type_) in columns.items()}
        return self._ibis.sql(query, schema=ibis.schema(schema))

    def memory(self, frame: pd.DataFrame) -> ibis.Table:
        """Return a frame of numbers, truth values and texts as a table."""
        schema = ibis.schema({name: _IN_MEMORY[str(dtype)] for name, dtype in frame.dtypes.items()})
        name = f"memory_{next(self._names)}"
        # Ibis's own tables of memory are unknown to the statements that keep results.
        self._ibis.con.register(name, _arrow(frame, schema))
        return self._ibis.sql(f"SELECT * FROM {name}", schema=schema)

    def materialised(self, table: ibis.Table) -> ibis.Table:
        """Return the rows of a table of logs, computed once and kept for expressions that read them several times."""
        name = f"kept_{next(self._names)}"
        with _readable():
            self._ibis.raw_sql(f"CREATE TEMP TABLE {name} AS {ibis.to_sql(table, dialect='duckdb')}")
        return self._ibis.sql(f"SELECT * FROM {name}", schema=table.schema())

    def other_lines(self, files: Sequence[Path]) -> Iterator[tuple[int, bytes | None]]:
        """Yield file and text of every line that is not of a bulk kind, None for a line that is no JSON."""
        return self._lines(files, f"json IS NULL OR NOT ({_of_kinds(BULK)})")

    def lines_of(
        self, files: Sequence[Path], kinds: Sequence[type[events.Event]]
    ) -> Iterator[tuple[int, bytes | None]]:
        """Yield file and text of every line of some kinds."""
        return self._lines(files, _of_kinds(kinds))

    def _lines(self, files: Sequence[Path], condition: str) -> Iterator[tuple[int, bytes | None]]:
        query = (
            f"SELECT CAST(file_index AS BIGINT) AS {FILE}, encode({_LINE}) AS line "
            f"FROM read_ndjson_objects({_list(files)}, {_OPTIONS}) WHERE {condition}"
        )
        with _readable():
            # A connection of its own: other queries run while these lines are decoded.
            for batch in self._ibis.con.cursor().sql(query).to_arrow_reader(LINES_AT_ONCE):
                yield from zip(batch[FILE].to_pylist(), batch["line"].to_pylist(), strict=True)

    def arrow(self, table: ibis.Table) -> Any:
        """Run an expression and return its rows as an Arrow table."""
        with _readable():
            return table.to_pyarrow()

    def frame(self, table: ibis.Table) -> pd.DataFrame:
        """Run an expression and return its rows as a frame."""
        frame: pd.DataFrame = self.arrow(table).to_pandas()
        return frame


def _arrow(frame: pd.DataFrame, schema: Any) -> Any:
    return pa.Table.from_pandas(frame, schema=schema.to_pyarrow(), preserve_index=False)


_LINE = "CAST(json AS VARCHAR)"
_OPTIONS = (
    "format = 'newline_delimited', ignore_errors = true, filename = true, "
    f"maximum_object_size = {MAX_LINE_BYTES}, compression = 'uncompressed'"
)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Turn the database's errors into one for people: logs were moved, deleted or denied while they were read."""
    try:
        yield
    except duckdb.Error as error:
        raise DistdiagError(
            f"the logs cannot be read: {str(error).splitlines()[0]}", "are they being moved or deleted?"
        ) from error


def _of_kinds(kinds: Sequence[type[events.Event]]) -> str:
    return " OR ".join(f'starts_with({_LINE}, \'{{"kind":"{events.kind_of(kind)}"\')' for kind in kinds)


def _of_kind(kind: type[events.Event]) -> str:
    """Return the condition that a line is of a kind, whatever the order of its fields."""
    unusual = f"NOT starts_with({_LINE}, '{{\"kind\":\"') AND json ->> 'kind' = '{events.kind_of(kind)}'"
    return f"{_of_kinds((kind,))} OR ({unusual})"


def _types_of(annotation: Any) -> tuple[str, str]:
    if isinstance(annotation, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not types.NoneType]
        annotation = members[0] if len(members) == 1 else object
    return _SCALARS.get(annotation, _JSON)


def _selected(field: msgspec.structs.FieldInfo) -> str:
    default = field.default
    value = f"record.{_name(field.name)}"
    if isinstance(default, bool | int | float):
        value = f"coalesce({value}, {default!r})"
    elif isinstance(default, str):
        value = f"coalesce({value}, {_text(default)})"
    return f"{value} AS {_name(field.name)}"


def _name(name: str) -> str:
    return f'"{name}"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _list(files: Sequence[Path]) -> str:
    return "[" + ", ".join(_text(str(file)) for file in files) + "]"
