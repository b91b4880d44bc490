"""Calls and their ends, nearly all of a log, as the engine reads them."""

import contextlib
import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distdiag import events
from distdiag.engine import FILE, Engine
from distdiag.run.window import Part

_NEEDED: Mapping[type[events.Event], tuple[str, ...]] = {
    events.Call: ("call", "signature", "seq", "step", "start_ns"),
    events.Done: ("call", "end_ns"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one kind that are whole."""

    arrow: Any
    """An Arrow table with the columns of the kind."""
    files: npt.NDArray[np.int64]
    """Position of each row's file in the list that was read."""
    damaged: Counter[str]
    """Lines by file name that are of the kind, but lack a field it needs."""


def read_bulk(engine: Engine, parts: Sequence[Part]) -> dict[type[events.Event], Rows]:
    """Return the rows of the bulk kinds."""
    return {kind: _rows(engine, kind, parts) for kind in _NEEDED}


def give_back() -> None:
    """Return memory that was freed to the system, where the C library can.

    Each thread of the engine has a place of its own to allocate from, in which nothing else would use what it left.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _rows(engine: Engine, kind: type[events.Event], parts: Sequence[Part]) -> Rows:
    arrow = engine.arrow(engine.read([part.path for part in parts], kind))
    damaged = np.zeros(arrow.num_rows, dtype=bool)
    for name in _NEEDED[kind]:
        if arrow[name].null_count:
            damaged |= np.asarray(arrow[name].is_null().to_numpy())
    files = np.asarray(arrow[FILE].to_numpy(), dtype=np.int64)
    count = Counter(parts[file].log.path.name for file in files[damaged].tolist())
    if damaged.any():
        arrow = arrow.take(np.flatnonzero(~damaged))
        files = files[~damaged]
    return Rows(arrow=arrow, files=files, damaged=count)
