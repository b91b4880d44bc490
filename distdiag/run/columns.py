"""Columns of records that are too many to be looked at one by one, on each rank's own clock still."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distdiag.run.frames import TIMES

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

GAP = -1
"""Code of a text that is not there."""


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
