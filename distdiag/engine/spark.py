"""Spark as query engine, for logs that outgrow one machine: the same expressions, on a cluster or on this machine.

What a verdict needs of a run's end is read here, as always; what goes over whole logs runs on Spark, which reads the
files where they lie, and only reduced tables come back.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdiag import events
from distdiag.deferred import deferred
from distdiag.engine import Engine, sql, united
from distdiag.engine.packs import PackEngine, spans_of
from distdiag.engine.spark_logs import Logs
from distdiag.engine.sql import FILE, Kinds
from distdiag.errors import DistdiagError

if TYPE_CHECKING:
    import ibis
    import pandas as pd
else:
    ibis = deferred("ibis")
    pd = deferred("pandas")

LOCAL = "local[*]"
"""Master of a Spark that runs on this machine, on all its processors."""
PARTITIONS_PER_PROCESSOR = 32
"""Of a shuffle on one machine: of 20 GB of logs, what is in one still fits its part of a heap of 2 GB. Spark joins
those that turn out small."""
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Else every read of many files lists them in as many tasks, which take seconds.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # Half of Spark's own: sorted on each processor at once, they shall fit a small heap.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "32m",
}
HINT = "install it beside distdiag: pip install 'distdiag[spark]'; it needs Java 17 or later"


def session_of(master: str) -> Any:
    """Return the Spark session of a master; there is one per process.

    Raises ``DistdiagError`` where PySpark or Java is missing, or the master does not answer.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise DistdiagError("Spark is not installed", HINT) from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("distdiag")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    if master.startswith("local"):
        partitions = PARTITIONS_PER_PROCESSOR * (os.cpu_count() or 1)
        for name, value in {**LOCAL_SETTINGS, "spark.sql.shuffle.partitions": str(partitions)}.items():
            builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise DistdiagError(f"Spark does not start on {master}: {_first_line(error)}", HINT) from error


class SparkEngine(Engine):
    """Runs expressions on Spark, over the files that ``embedded`` has read the newest part of."""

    def __init__(self, session: Any, embedded: Engine, here: Path | None = None, there: str = "") -> None:
        """Make an engine; of files below ``here`` only a part may lie there, they are read from the URI ``there``."""
        super().__init__()
        self.embedded = embedded
        self._session = session
        self._here, self._there = here, there
        self._tables = ibis.pyspark.connect(session)
        self._logs: dict[tuple[Path, ...], Logs] = {}
        self.shares_disk = str(session.sparkContext.master).startswith("local")
        """Whether what an executor writes all others read: rows that are kept are then files of Parquet."""

    def read(self, files: Sequence[Path], kind: Kinds, only: Collection[str] | None = None) -> ibis.Table:
        """Return the records of one kind as a lazy table, as ``Engine.read`` does."""
        schema = sql.schema_of(kind, only)
        if not isinstance(self.embedded, PackEngine):
            with readable():
                rows = self._logs_of(files).records(kind, only)
        elif isinstance(kind, tuple):
            return united(self, files, kind, only)
        else:
            rows = self._packed(files, kind)
        return self._table(rows.select(*schema.names)).cast(schema)

    def parsed(self, text: ibis.Value, type_: str) -> ibis.Value:
        """Return a column of JSON text as values of an Ibis type; Spark casts no text to maps."""
        from ibis.backends.sql.datatypes import PySparkType

        parse = ibis.udf.scalar.builtin(_from_json, name="from_json", signature=(("string", "string"), type_))
        return parse(text, ibis.literal(PySparkType.to_string(ibis.dtype(type_))))

    def lines_of(
        self, files: Sequence[Path], kinds: Sequence[type[events.Event]]
    ) -> Iterator[tuple[int, bytes | None]]:
        """Yield file and text of every line of some kinds, those of one file together."""
        if isinstance(self.embedded, PackEngine):
            yield from self.embedded.lines_of(files, kinds)
            return
        with readable():
            lines = self._logs_of(files).lines(kinds)
        for row in self._rows(lines.orderBy(FILE)):
            yield int(row[FILE]), str(row["value"]).encode()

    def memory(self, frame: pd.DataFrame) -> ibis.Table:
        """Return a frame of numbers, truth values and texts as a table."""
        return self._table(self._session.createDataFrame(self.embedded.arrow(self.embedded.memory(frame))))

    def materialised(self, table: ibis.Table) -> ibis.Table:
        """Return the rows of a table, computed once and kept where the executors read them."""
        return self._table(self._kept(self._session.sql(self._text(table))))

    def arrow(self, table: ibis.Table) -> Any:
        """Run an expression and return its rows as an Arrow table."""
        with readable():
            return self._session.sql(self._text(table)).toArrow().cast(table.schema().to_pyarrow())

    def _kept(self, rows: Any) -> Any:
        """Return rows that are computed once; what is made of them is planned without what they were made of."""
        with readable():
            if not self.shares_disk:
                return rows.localCheckpoint()
            # Of its columns only those are read that are needed; a checkpoint took twice as much of Java's memory.
            folder = self._uri(self._folder() / f"kept-{next(_VIEWS)}")
            rows.write.parquet(folder)
            return self._session.read.schema(rows.schema).parquet(folder)

    def _logs_of(self, files: Sequence[Path]) -> Logs:
        """Return the logs of these files, of which what was read before is known."""
        known = self._logs.get(tuple(files))
        if known is None:
            known = self._logs[tuple(files)] = Logs(self._session, [self._uri(file) for file in files], self._kept)
        return known

    def _packed(self, files: Sequence[Path], kind: type[events.Event]) -> Any:
        """Return the records of the files that a packed run was made of."""
        pack = self.embedded
        assert isinstance(pack, PackEngine)
        name = events.kind_of(kind)
        schema = sql.schema_of(kind)
        if name not in pack.manifest.kinds:
            return self._session.createDataFrame(schema.to_pyarrow().empty_table())
        rows = self._session.read.parquet(self._uri(pack.folder / f"kind={name}"))
        places = {number: span.place for number, span in enumerate(spans_of(pack.manifest, files))}
        wanted = [(number, place) for number, place in places.items() if place is not None]
        known = self._session.createDataFrame(wanted, "number long, place long")
        return rows.withColumnRenamed(FILE, "number").join(known, "number").withColumnRenamed("place", FILE)

    def _text(self, table: ibis.Table) -> str:
        return str(self._tables.compile(table))

    def _uri(self, file: Path) -> str:
        if self._here is not None and file.is_relative_to(self._here):
            return f"{self._there}/{file.relative_to(self._here).as_posix()}"
        return f"file://{file.resolve()}"  # Hadoop decodes nothing: no ``as_uri``

    def _table(self, rows: Any) -> ibis.Table:
        name = f"distdiag_{next(_VIEWS)}"
        rows.createOrReplaceTempView(name)
        return self._tables.table(name)

    def _rows(self, rows: Any) -> Iterator[Any]:
        with readable():
            yield from rows.toLocalIterator()


_VIEWS = itertools.count()
"""Views belong to the session, which all engines of a process share."""


@contextlib.contextmanager
def readable(what: str = "Spark cannot run this") -> Iterator[None]:
    """Turn Spark's errors into one for people."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise DistdiagError(
            f"{what}: {_first_line(error)}", "can its executors read the logs, and write their disk?"
        ) from error


def _from_json(text: str, type_: str) -> None:
    """Stand for Spark's function, which the expression names."""


def _first_line(error: BaseException) -> str:
    """Return the one line that says something: Java puts its own call before it."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("An error occurred")]
    return lines[0].lstrip(": ") if lines else type(error).__name__
