"""Calls and their ends, nearly all of a log, as the engine reads them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distdiag import events
from distdiag.engine import FILE, Engine
from distdiag.run.columns import GAP, Column, Rows, constant
from distdiag.run.window import Part

_NEEDED: Mapping[type[events.Event], tuple[str, ...]] = {
    events.Call: ("call", "signature", "seq", "step", "start_ns"),
    events.Done: ("call", "end_ns"),
}


def read_bulk(engine: Engine, parts: Sequence[Part]) -> tuple[dict[type[events.Event], Rows], Counter[str]]:
    """Return the rows of the bulk kinds, and by file name how many of them lack a field that they need."""
    damaged: Counter[str] = Counter()
    return {kind: _rows(engine, kind, parts, damaged) for kind in _NEEDED}, damaged


def _rows(engine: Engine, kind: type[events.Event], parts: Sequence[Part], damaged: Counter[str]) -> Rows:
    arrow = engine.arrow(engine.read([part.path for part in parts], kind))
    broken = np.zeros(arrow.num_rows, dtype=bool)
    for name in _NEEDED[kind]:
        if arrow[name].null_count:
            broken |= np.asarray(arrow[name].is_null().to_numpy())
    files = np.asarray(arrow[FILE].to_numpy(), dtype=np.int64)
    if broken.any():
        damaged.update(parts[file].log.path.name for file in files[broken].tolist())
        arrow = arrow.take(np.flatnonzero(~broken))
        files = files[~broken]
    names = [name for name in arrow.column_names if name != FILE]
    return Rows(files=files, columns={name: _column(arrow[name]) for name in names})


def _column(column: Any) -> Column:
    """Return a column of an Arrow table."""
    if column.null_count == len(column) and str(column.type) != "bool":  # most logs leave most fields out
        absent = 0 if str(column.type) == "int64" else GAP
        return Column(values=constant(absent, len(column)), gaps=constant(True, len(column)))
    if str(column.type) in ("string", "large_string"):
        coded = column.dictionary_encode().combine_chunks()
        codes = coded.indices.fill_null(GAP).to_numpy(zero_copy_only=False)
        return Column(values=np.asarray(codes, dtype=np.int64), texts=tuple(coded.dictionary.to_pylist()))
    if str(column.type) == "bool":
        return Column(values=np.asarray(column.to_numpy(zero_copy_only=False), dtype=bool))
    if not column.null_count:
        return Column(values=np.asarray(column.to_numpy(), dtype=np.int64))
    gaps = np.asarray(column.is_null().to_numpy(), dtype=bool)
    return Column(values=np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64), gaps=gaps)
