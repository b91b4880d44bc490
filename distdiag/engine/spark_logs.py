"""Logs on Spark: their text is gone through twice, once for the bulk and once for the lines of all other kinds."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any
from urllib.parse import unquote

from distdiag import events
from distdiag.engine import BULK, sql
from distdiag.engine.sql import FILE, Kinds

_TYPES = {"int64": "long", "float64": "double", "boolean": "boolean", "string": "string"}
_STORE = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*:(?://[^/]*)?(?=/)")


class Logs:
    """The files of a run as rows of Spark."""

    def __init__(self, session: Any, uris: Sequence[str], keep: Callable[[Any], Any]) -> None:
        """Know the files by their URIs, and how rows that are read several times are kept."""
        self._session = session
        self._uris = list(uris)
        self._keep = keep

    def records(self, kinds: Kinds, only: Collection[str] | None) -> Any:
        """Return the records of some kinds with their file, defaults filled in; ``only`` these fields are read."""
        from pyspark.sql import functions

        wanted = sql.kinds_of(kinds)
        types = {name: _TYPES[str(type_)] for name, type_ in sql.schema_of(kinds, only).items() if name != FILE}
        declared = ", ".join(["kind string", *(f"`{name}` {type_}" for name, type_ in types.items())])
        if set(BULK).isdisjoint(wanted):
            value, record = functions.col("value"), functions.from_json("value", declared)
            lines = self._of(wanted).filter(_begins_with(value, wanted) | ~value.startswith('{"kind":"'))
            # A row of its own for each: what is asked of the record would be asked of the text, which is then parsed
            # anew for every question.
            rows = lines.select(FILE, functions.explode(functions.array(record)).alias("record"))
            rows = rows.select(FILE, "record.*")
        else:
            # Faster than lines that are parsed one by one: it stops at the kind of records that nobody wants.
            rows = self._numbered(self._session.read.schema(declared).json(self._uris, lineSep="\n"))
        rows = rows.filter(functions.col("kind").isin([events.kind_of(kind) for kind in wanted]))
        return rows.select(FILE, *(_filled(name, default) for name, default in sql.defaults_of(kinds, only).items()))

    def lines(self, kinds: Collection[type[events.Event]]) -> Any:
        """Return file and text (``value``) of the lines that begin with kinds that are not a log's bulk."""
        from pyspark.sql import functions

        return self._of(kinds).filter(_begins_with(functions.col("value"), kinds))

    def _of(self, kinds: Collection[type[events.Event]]) -> Any:
        return self._all if events.Step in kinds else self._few

    @functools.cached_property
    def _all(self) -> Any:
        """What is not of the bulk: a copy, as a pass over a run asks for several kinds."""
        from pyspark.sql import functions

        value = functions.col("value")
        lines = self._numbered(self._session.read.text(self._uris, lineSep="\n"))
        return self._keep(lines.filter(~_begins_with(value, BULK) & ~value.startswith("\0")))

    @functools.cached_property
    def _few(self) -> Any:
        """The same without steps, the longest lines by far."""
        from pyspark.sql import functions

        return self._keep(self._all.filter(~_begins_with(functions.col("value"), (events.Step,))))

    def _numbered(self, rows: Any) -> Any:
        """Return rows of files with the place of theirs among them."""
        from pyspark.sql import functions

        places = {_path_of(uri): number for number, uri in enumerate(self._uris)}
        # As Spark says them: encoded, of a store that it may name otherwise, of none with one slash or three.
        said = {each for uri in rows.inputFiles() for each in (uri, uri.replace(":///", ":/", 1))}
        known = [(uri, places[_path_of(unquote(uri))]) for uri in sorted(said)]
        numbers = self._session.createDataFrame(known, f"uri string, {FILE} long")
        located = rows.select("*", functions.col("_metadata.file_path").alias("uri"))
        return located.join(functions.broadcast(numbers), "uri").drop("uri")


def _path_of(uri: str) -> str:
    return _STORE.sub("", uri)


def _begins_with(value: Any, kinds: Collection[type[events.Event]]) -> Any:
    return functools.reduce(operator.or_, (value.startswith(f'{{"kind":"{events.kind_of(kind)}"') for kind in kinds))


def _filled(name: str, default: bool | int | float | str | None) -> Any:
    from pyspark.sql import functions

    column = functions.col(f"`{name}`")
    return column if default is None else functions.coalesce(column, functions.lit(default)).alias(name)
