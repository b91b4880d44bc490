"""Declared columns of a run's frames, how records become frames, and columns of records too many to look at singly."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from distdiag import events
from distdiag.deferred import deferred

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

TIMES = frozenset({"time_ns", "start_ns", "end_ns", "wait_start_ns", "arrive_ns"})
"""Columns that hold a moment, which frames give on the run's one clock; all other ``_ns`` are durations."""
_DTYPES: dict[Any, tuple[str, str]] = {
    int: ("int64", "Int64"),
    float: ("float64", "float64"),
    bool: ("bool", "boolean"),
}
CALL_COLUMNS: Mapping[str, str] = {
    "rank": "int64",
    "call": "int64",
    "group": "category",
    "group_key": "category",
    "members": "object",
    "op": "category",
    "p2p": "bool",
    "seq": "int64",
    "step": "int64",
    "forwards": "int64",
    "backwards": "int64",
    "phase": "category",
    "start_ns": "int64",
    "end_ns": "Int64",
    "clock": "object",
    "wait_start_ns": "Int64",
    "arrive_ns": "Int64",
    "duration_ns": "Int64",
    "failed": "bool",
    "error": "object",
    "chain": "int64",
    "path_chain": "int64",
    "agree": "int64",
    "dtype": "object",
    "shapes": "object",
    "output_shapes": "object",
    "numel": "int64",
    "size_bytes": "int64",
    "reduce_op": "object",
    "root": "Int64",
    "peer": "Int64",
    "tag": "Int64",
    "input_splits": "object",
    "output_splits": "object",
    "path": "int64",
    "module": "object",
    "thread": "category",
    "device": "category",
    "coalesced": "Int64",
    "contended": "bool",
    "captured": "bool",
    "handling": "object",
}
"""``object`` columns hold ``None`` for an absent value and tuples for lists; ``category`` ones are never absent."""
CRASH_COLUMNS: Mapping[str, str] = {"rank": "int64", "kind": "object", "thread": "object", "frames": "object"}
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
GAP = -1
"""Code of a text that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A record and the rank whose log it stands in."""

    rank: int
    record: events.Event


def columns_of(kind: type[events.Event]) -> dict[str, str]:
    """Return the columns of a kind's frame and their dtypes, ``rank`` first."""
    fields = {field.name: _dtype_of(field.type) for field in msgspec.structs.fields(kind)}
    return {"rank": "int64"} | {name: dtype for name, dtype in fields.items() if name != "rank"}


def frame(columns: Mapping[str, str], values: Mapping[str, Any]) -> pd.DataFrame:
    """Return a frame of exactly the declared columns and dtypes; a missing or surplus column is a ``KeyError``."""
    surplus = values.keys() - columns.keys()
    if surplus:
        raise KeyError(sorted(surplus))
    # With an index that all columns share they are not compared, which takes longer than making them.
    index = pd.RangeIndex(len(values[next(iter(columns))]))
    series = {name: _series(values[name], dtype, index) for name, dtype in columns.items()}
    return pd.DataFrame(series, index=index, copy=False)


def empty(columns: Mapping[str, str]) -> pd.DataFrame:
    """Return a frame without rows."""
    values = {name: _nothing(dtype) for name, dtype in columns.items()}
    return pd.DataFrame(values, index=pd.RangeIndex(0), copy=False)


def frame_of(
    kind: type[events.Event],
    ranked: Sequence[Ranked],
    path_of: Callable[[int, int], int],
    offsets: Mapping[int, int],
) -> pd.DataFrame:
    """Return the frame of the records of one kind, their paths made global and their times put on one clock.

    ``path_of`` maps rank and path number to the run's path id; ``offsets`` holds what to add to a rank's clock.
    """
    columns = columns_of(kind)
    if not ranked:  # as it is with most kinds
        return empty(columns)
    values: dict[str, list[Any]] = {
        name: [getattr(item.record, name) for item in ranked] for name in columns if name != "rank"
    }
    values["rank"] = ranks = [item.rank for item in ranked]
    if "path" in values:
        numbers = values["path"]
        values["path"] = [None if n is None else path_of(rank, n) for rank, n in zip(ranks, numbers, strict=True)]
    for name in TIMES & values.keys():
        moments = values[name]
        values[name] = [None if t is None else t + offsets[rank] for rank, t in zip(ranks, moments, strict=True)]
    return frame(columns, values)


def objects(values: Iterable[Any]) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return an array of the values as they are; lists become tuples, so that they compare and cannot change."""
    given = list(values)
    return np.fromiter(map(frozen, given) if list in set(map(type, given)) else given, dtype=np.object_)


def frozen(value: Any) -> Any:
    """Return a value with its lists made tuples."""
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], list):
        return tuple(frozen(item) for item in value)
    return tuple(value)


def _series(values: Any, dtype: str, index: pd.RangeIndex) -> pd.Series[Any]:
    if dtype == "object" and not isinstance(values, np.ndarray):
        values = objects(values)
    if isinstance(values, np.ndarray) and str(values.dtype) == dtype != "object":
        return pd.Series(values, index=index, copy=False)  # told its type, it would compare all values with themselves
    return pd.Series(values, index=index, dtype=dtype, copy=False)


@functools.cache
def _nothing(dtype: str) -> Any:
    return np.empty(0, dtype=np.object_) if dtype == "object" else pd.Series([], dtype=dtype).array


def _dtype_of(annotation: Any) -> str:
    optional = False
    if isinstance(annotation, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not types.NoneType]
        optional = len(members) < len(typing.get_args(annotation))
        annotation = members[0] if len(members) == 1 else object
    plain, nullable = _DTYPES.get(annotation, ("object", "object"))
    return nullable if optional else plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One field of all records of a kind: numbers, truth values, or codes of texts."""

    values: npt.NDArray[Any]
    """0 in a gap; of texts ``GAP``."""
    gaps: Booleans | None = None
    """Where numbers are not known; None where all are."""
    texts: tuple[str, ...] = ()
    """What the codes stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The records of one kind that are whole."""

    files: Integers
    """Position of each record's file in the list that was read."""
    columns: Mapping[str, Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Records of one kind, with the rank of each and what to add to its clock."""

    ranks: Integers
    offsets: Integers
    named: Mapping[str, Column]

    def integers(self, name: str) -> Integers:
        """Return a column as integers, 0 where it has a gap; moments on the common clock."""
        values: Integers = self.named[name].values
        return values + self.offsets if name in TIMES else values

    def gaps(self, name: str) -> Booleans:
        """Return where a column has gaps."""
        gaps = self.named[name].gaps
        return constant(False, len(self.ranks)) if gaps is None else gaps

    def booleans(self, name: str) -> Booleans:
        """Return a column of truth values."""
        values: Booleans = self.named[name].values
        return values

    def texts(self, name: str) -> tuple[Integers, tuple[str, ...]]:
        """Return a text column as codes, ``GAP`` for a gap, and the texts they stand for."""
        column = self.named[name]
        return column.values, column.texts


def constant(value: object, size: int) -> Any:
    """Return an array of equal values, which takes no memory: most logs leave most columns out."""
    cell = np.empty((), dtype=type(value) if isinstance(value, bool | int) else np.object_)
    cell[()] = value
    return np.broadcast_to(cell, size)
