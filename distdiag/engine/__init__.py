"""The query engine: logs as Ibis tables on an embedded DuckDB, with the columns that the records declare."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdiag import events
from distdiag.deferred import deferred
from distdiag.engine import sql
from distdiag.engine.sql import FILE, Kinds
from distdiag.errors import DistdiagError

if TYPE_CHECKING:
    import duckdb
    import ibis
    import pandas as pd
    import pyarrow as pa
else:
    duckdb = deferred("duckdb")
    ibis = deferred("ibis")
    pa = deferred("pyarrow")

__all__ = ["BULK", "FILE", "LINES_AT_ONCE", "Engine", "readable"]

LINES_AT_ONCE = 10_000
COMPILED_KEPT = 256
"""Queries: compiling one takes longer than running it on a small run, and each run asks for about ten."""

_IN_MEMORY = {
    "int64": "int64",
    "Int64": "int64",
    "float64": "float64",
    "bool": "boolean",
    "object": "string",
    "str": "string",
}

BULK: tuple[type[events.Event], ...] = (events.Call, events.Done)
"""The kinds that make up nearly all of a log; all others are few enough to be decoded one by one, and to be copied."""

MEMORY_BYTES = 2_500_000_000
"""What the database keeps in memory; the rest of results that are kept lies in its temporary folder."""
SHARE = 0.5
"""Of what the database would take, which is most of what the machine or the container has: where that is little, the
frames of a verdict need the rest."""
_SIZE = re.compile(r"([\d.]+)\s*(bytes|[KMGT]iB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def memory_limit_bytes(granted: str) -> int:
    """Return what the database may keep in memory where it would take ``granted``, such as ``18.8 GiB``."""
    size = _SIZE.fullmatch(granted.strip())
    return MEMORY_BYTES if size is None else min(MEMORY_BYTES, int(SHARE * float(size[1]) * _UNITS[size[2]]))


class Engine:
    """An in-memory database that reads logs where they lie."""

    def __init__(self) -> None:
        """Make an engine; its database starts when it is first asked, and lives as long as this object."""
        self._names = itertools.count()
        self._spooled: Path | None = None
        self._database: Any = None
        self._views: dict[str, str] = {}
        self._few: dict[tuple[Path, ...], str] = {}
        self._let_go: set[tuple[Path, ...]] = set()
        self._starting = threading.Lock()

    @property
    def _connection(self) -> Any:
        with self._starting:  # a log is read by two threads
            if self._database is None:
                self._database = duckdb.connect(config={"temp_directory": str(self._folder())})
                # It would be drawn into the report.
                self._database.execute("SET enable_progress_bar = false")
                granted = self._database.execute("SELECT current_setting('memory_limit')").fetchone()[0]
                self._database.execute(f"SET memory_limit = '{memory_limit_bytes(granted)}B'")
            return self._database

    def spool(self, name: str, data: bytes) -> Path:
        """Put part of a log into a temporary file and return its path."""
        path = self._folder() / name
        path.write_bytes(data)
        return path

    def _folder(self) -> Path:
        """Return a folder that lives as long as this object."""
        if self._spooled is None:
            self._spooled = Path(tempfile.mkdtemp(prefix="distdiag-"))
            weakref.finalize(self, shutil.rmtree, self._spooled, ignore_errors=True)
        return self._spooled

    def read(self, files: Sequence[Path], kind: Kinds, only: Collection[str] | None = None) -> ibis.Table:
        """Return the records of one kind as a lazy table; lines of other kinds and damaged lines are no rows.

        Fields that a log leaves out hold their default, or NULL where that is None. ``only`` these fields are read.
        Several kinds are read in one pass over the files.
        """
        return self._view(self._query(files, kind, only), sql.schema_of(kind, only))

    def rows(self, files: Sequence[Path], kind: type[events.Event]) -> Any:
        """Return the records of one kind as an Arrow table.

        To run the query as it is takes no library of expressions, whose import is a third of the time of a small run.
        """
        with readable():
            return self._connection.sql(self._query(files, kind)).to_arrow_table()

    def _view(self, query: str, schema: Any) -> ibis.Table:
        """Return what a query gives, as a lazy table.

        Expressions know tables by their names alone, so that equal ones are compiled once for all engines.
        """
        name = self._views.get(query)
        if name is None:
            name = self._views[query] = f"records_{next(self._names)}"
            with readable():
                self._connection.execute(f"CREATE TEMP VIEW {name} AS {query}")
        return ibis.table(schema, name=name)

    def _query(self, files: Sequence[Path], kind: Kinds, only: Collection[str] | None = None) -> str:
        # Telling lines apart as text first and giving only those of the kind their columns is twice as fast as
        # ``read_json``, which gives all lines columns.
        return (
            f"SELECT {FILE}, {sql.selected(kind, only)} FROM (SELECT CAST(file_index AS BIGINT) AS {FILE}, "
            f"from_json(json, {sql.declared(kind, only)}) AS record "
            f"FROM {self._lines_with(files, kind)} WHERE {sql.is_of_kind(kind)})"
        )

    def _lines_with(self, files: Sequence[Path], kind: Kinds) -> str:
        """Return what to select lines from: the files or, where kinds are few, a copy of all lines of such kinds.

        The copies are made once: a pass over a run asks for several kinds. That of steps, the longest lines by far,
        stands apart from the others, and can be let go.
        """
        if not set(BULK).isdisjoint(sql.kinds_of(kind)):
            return sql.lines_of(files)
        known = self._few.get(tuple(files))
        if known is None:
            known = self._few[tuple(files)] = f"few_{next(self._names)}"
            self._keep(
                f"{known}_all", f"{sql.lines_of(files)} WHERE json IS NOT NULL AND NOT ({sql.is_of_kinds(BULK)})"
            )
            self._keep(known, f"{known}_all WHERE NOT ({sql.is_of_kinds((events.Step,))})")
        if events.Step not in sql.kinds_of(kind):
            return known
        return sql.lines_of(files) if tuple(files) in self._let_go else f"{known}_all"

    def _keep(self, name: str, lines: str) -> None:
        with readable():
            self._connection.execute(f"CREATE TEMP TABLE {name} AS SELECT file_index, json FROM {lines}")

    def let_go(self, files: Sequence[Path]) -> None:
        """Drop the copy of the lines of steps, from which no table is made any more; others read the files again."""
        known = self._few.get(tuple(files))
        if known is not None and tuple(files) not in self._let_go:
            self._let_go.add(tuple(files))
            self._connection.execute(f"DROP TABLE {known}_all")

    def memory(self, frame: pd.DataFrame) -> ibis.Table:
        """Return a frame of numbers, truth values and texts as a table."""
        schema = ibis.schema({name: _IN_MEMORY[str(dtype)] for name, dtype in frame.dtypes.items()})
        name = f"memory_{next(self._names)}"
        self._connection.register(name, _arrow(frame, schema))
        return ibis.table(schema, name=name)

    def materialised(self, table: ibis.Table) -> ibis.Table:
        """Return the rows of a table of logs, computed once and kept for expressions that read them several times."""
        name = f"kept_{next(self._names)}"
        with readable():
            self._connection.execute(f"CREATE TEMP TABLE {name} AS {_compiled(table.op())}")
        return ibis.table(table.schema(), name=name)

    def parsed(self, text: ibis.Value, type_: str) -> ibis.Value:
        """Return a column of JSON text as values of an Ibis type."""
        return text.cast("json").cast(type_)

    def other_lines(self, files: Sequence[Path]) -> Iterator[tuple[int, bytes | None]]:
        """Yield file and text of every line that is not of a bulk kind, None for a line that is no JSON."""
        return self._lines(files, f"json IS NULL OR NOT ({sql.is_of_kinds(BULK)})")

    def lines_of(
        self, files: Sequence[Path], kinds: Sequence[type[events.Event]]
    ) -> Iterator[tuple[int, bytes | None]]:
        """Yield file and text of every line of some kinds."""
        return self._lines(files, sql.is_of_kinds(kinds))

    def _lines(self, files: Sequence[Path], condition: str) -> Iterator[tuple[int, bytes | None]]:
        query = (
            f"SELECT CAST(file_index AS BIGINT) AS {FILE}, encode({sql.LINE}) AS line "
            f"FROM {sql.lines_of(files)} WHERE {condition}"
        )
        with readable():
            # A connection of its own: other queries run while these lines are decoded.
            for batch in self._connection.cursor().sql(query).to_arrow_reader(LINES_AT_ONCE):
                yield from zip(batch[FILE].to_pylist(), batch["line"].to_pylist(), strict=True)

    def arrow(self, table: ibis.Table) -> Any:
        """Run an expression and return its rows as an Arrow table."""
        with readable():
            return self._connection.sql(_compiled(table.op())).to_arrow_table().cast(table.schema().to_pyarrow())

    def frame(self, table: ibis.Table) -> pd.DataFrame:
        """Run an expression and return its rows as a frame."""
        frame: pd.DataFrame = self.arrow(table).to_pandas()
        return frame


def united(engine: Engine, files: Sequence[Path], kinds: Kinds, only: Collection[str] | None) -> ibis.Table:
    """Return what an engine reads kind by kind as the one table of several kinds."""
    schema = sql.schema_of(kinds, only)
    parts = [engine.read(files, kind, only) for kind in sql.kinds_of(kinds)]
    columns = [
        {name: part[name] if name in part.columns else ibis.null(type_) for name, type_ in schema.items()}
        for part in parts
    ]
    return ibis.union(*(part.select(**values) for part, values in zip(parts, columns, strict=True)))


@functools.lru_cache(COMPILED_KEPT)
def _compiled(expression: Any) -> str:
    """Return the query that the operation of an expression stands for."""
    return str(ibis.to_sql(expression.to_expr(), dialect="duckdb", pretty=False))


def _arrow(frame: pd.DataFrame, schema: Any) -> Any:
    return pa.Table.from_pandas(frame, schema=schema.to_pyarrow(), preserve_index=False)


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Turn the database's errors into one for people: logs were moved, deleted or denied while they were read."""
    try:
        yield
    except duckdb.Error as error:
        raise DistdiagError(
            f"the logs cannot be read: {str(error).splitlines()[0]}", "are they being moved or deleted?"
        ) from error
