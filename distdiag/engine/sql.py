"""How DuckDB reads logs: the texts of queries, and the columns that the records declare."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from distdiag import events
from distdiag.deferred import deferred

if TYPE_CHECKING:
    import ibis
else:
    ibis = deferred("ibis")

Kinds = type[events.Event] | tuple[type[events.Event], ...]
"""Records of one kind, or of several in one table: a field is NULL where the kind of a record has none of its name."""

FILE = "file"
"""Column that every table has beside the record's own: position of the file in the list that was read."""
MAX_LINE_BYTES = 64 << 20
"""Longest line read; DuckDB's own default of 16 MiB is shorter than a segment may be."""
LINE = "CAST(json AS VARCHAR)"

_SCALARS: dict[Any, tuple[str, str]] = {
    int: ("BIGINT", "int64"),
    float: ("DOUBLE", "float64"),
    bool: ("BOOLEAN", "boolean"),
    str: ("VARCHAR", "string"),
}
_JSON = ("VARCHAR", "string")
"""Nested and free values stay JSON text: analysis that needs them works on a few records, not on whole runs."""
_OPTIONS = (
    "format = 'newline_delimited', ignore_errors = true, filename = true, "
    f"maximum_object_size = {MAX_LINE_BYTES}, compression = 'uncompressed'"
)


def lines_of(files: Sequence[Path]) -> str:
    """Return what the lines of files are selected from: ``file_index`` and ``json``, NULL for a line that is none."""
    return f"read_ndjson_objects({listed(text(str(file)) for file in files)}, {_OPTIONS})"


def kinds_of(kinds: Kinds) -> tuple[type[events.Event], ...]:
    """Return the kinds meant."""
    return kinds if isinstance(kinds, tuple) else (kinds,)


def schema_of(kind: Kinds, only: Collection[str] | None = None) -> Any:
    """Return the Ibis schema of a kind's table: the file, and the fields of the kind or ``only`` these."""
    return ibis.schema({FILE: "int64"} | {field.name: _types_of(field.type)[1] for field in _fields(kind, only)})


def declared(kind: Kinds, only: Collection[str] | None = None) -> str:
    """Return the structure that ``from_json`` makes of a line."""
    return text(json.dumps({field.name: _types_of(field.type)[0] for field in _fields(kind, only)}))


def selected(kind: Kinds, only: Collection[str] | None = None) -> str:
    """Return the columns of a ``record`` that was made so, defaults filled in."""
    return ", ".join(_selected(field) for field in _fields(kind, only))


def is_of_kinds(kinds: Iterable[type[events.Event]]) -> str:
    """Return the condition that a line is of one of the kinds, as recording writes them."""
    return " OR ".join(f'starts_with({LINE}, \'{{"kind":"{events.kind_of(kind)}"\')' for kind in kinds)


def is_of_kind(kind: Kinds) -> str:
    """Return the condition that a line is of a kind, whatever the order of its fields."""
    names = ", ".join(text(events.kind_of(each)) for each in kinds_of(kind))
    unusual = f"NOT starts_with({LINE}, '{{\"kind\":\"') AND json ->> 'kind' IN ({names})"
    return f"{is_of_kinds(kinds_of(kind))} OR ({unusual})"


def default_of(field: msgspec.structs.FieldInfo) -> bool | int | float | str | None:
    """Return what a field is that a log leaves out, None where that is unknown."""
    default = field.default
    return default if isinstance(default, bool | int | float | str) else None


def defaults_of(kinds: Kinds, only: Collection[str] | None = None) -> dict[str, bool | int | float | str | None]:
    """Return what each field of a kind's table is that a log leaves out."""
    return {field.name: default_of(field) for field in _fields(kinds, only)}


def named(name: str) -> str:
    """Return a name for a query."""
    return f'"{name}"'


def text(value: str) -> str:
    """Return a text for a query."""
    return "'" + value.replace("'", "''") + "'"


def listed(values: Iterable[str]) -> str:
    """Return a list of what already are texts of queries."""
    return "[" + ", ".join(values) + "]"


def _fields(kind: Kinds, only: Collection[str] | None) -> list[msgspec.structs.FieldInfo]:
    every = {field.name: field for each in kinds_of(kind) for field in msgspec.structs.fields(each)}
    return [field for name, field in every.items() if only is None or name in only]


def _types_of(annotation: Any) -> tuple[str, str]:
    if isinstance(annotation, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not types.NoneType]
        annotation = members[0] if len(members) == 1 else object
    return _SCALARS.get(annotation, _JSON)


def _selected(field: msgspec.structs.FieldInfo) -> str:
    value, default = f"record.{named(field.name)}", default_of(field)
    if default is not None:
        value = f"coalesce({value}, {text(default) if isinstance(default, str) else repr(default)})"
    return f"{value} AS {named(field.name)}"
