"""Calls and their ends, nearly all of a log: read by the engine, joined with what the other records tell of them."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from distdiag import events
from distdiag._calls import UNKNOWN, Columns, calls_frame, signatures_of
from distdiag._identity import Groups, Paths, interned
from distdiag._records import Records, decode_lines
from distdiag._window import Part
from distdiag.engine import FILE, Engine

_NEEDED = {events.Call: ("call", "signature", "seq", "step", "start_ns"), events.Done: ("call", "end_ns")}
_INTERNED = (events.Path, events.Signature, events.Group)


def read_calls(
    engine: Engine, parts: Sequence[Part], records: Records, offsets: Mapping[int, int]
) -> tuple[pd.DataFrame, Counter[str], Paths]:
    """Return the calls, the damaged lines by file name, and the paths of all records."""
    calls, damaged_calls = _columns(engine, events.Call, parts, offsets)
    dones, damaged_dones = _columns(engine, events.Done, parts, offsets)

    def joined() -> tuple[pd.DataFrame, Paths]:
        paths = interned(records.by_kind[events.Path])
        groups = Groups(records.by_kind[events.Group])
        return calls_frame(calls, dones, signatures_of(records.by_kind[events.Signature], paths, groups)), paths

    frame, paths = joined()
    cut = [part for part in parts if part.cut]
    if cut and (frame["op"] == UNKNOWN).any():
        _add_interned(engine, cut, records)
        frame, paths = joined()
    return frame, damaged_calls + damaged_dones, paths


def _add_interned(engine: Engine, cut: Sequence[Part], records: Records) -> None:
    """Add the interned records that stand in the parts of files that were not read."""
    more = decode_lines(cut, engine.lines_of([part.log.path for part in cut], _INTERNED))
    for kind in _INTERNED:
        records.by_kind[kind] += more.by_kind[kind]


def _columns(
    engine: Engine, kind: type[events.Event], parts: Sequence[Part], offsets: Mapping[int, int]
) -> tuple[Columns, Counter[str]]:
    """Return the rows of a bulk kind; rows that lack a needed field are damaged lines, counted by file name."""
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
    ranks = np.array([part.rank for part in parts], dtype=np.int64)
    shifts = np.array([offsets[part.rank] for part in parts], dtype=np.int64)
    return Columns(ranks=ranks[files], offsets=shifts[files], arrow=arrow), count
