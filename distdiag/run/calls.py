"""Calls, their signatures and their ends, joined into one frame with vector operations only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distdiag import events
from distdiag.deferred import deferred
from distdiag.run.frames import CALL_COLUMNS, Booleans, Columns, Integers, Ranked, constant, frame, objects
from distdiag.run.identity import Groups, Paths

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")

Objects = npt.NDArray[np.object_]

UNKNOWN = "unknown"
"""Group and op of a call whose signature record is lost."""
_RANK_SHIFT = 40
"""Bits left to numbers of calls and signatures in a key of rank and number."""
_NOBODY = -1
_NO_SIGNATURE = events.Signature(signature=-1, group=UNKNOWN, op=UNKNOWN, path=0, agree=0)
_DONE_INTEGERS = ("end_ns", "wait_start_ns", "arrive_ns", "duration_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures:
    """All signatures of a run in rows; the last row stands for a signature that is not in the logs."""

    keys: Integers
    rows: Integers
    columns: Mapping[str, Objects]

    def rows_of(self, ranks: Integers, numbers: Integers) -> Integers:
        """Return the row of each (rank, signature number)."""
        return _looked_up(self.keys, self.rows, _keys(ranks, numbers), self.missing)

    @property
    def missing(self) -> int:
        """Return the row that stands for lost signatures."""
        return len(self.columns["op"]) - 1


def signatures_of(ranked: Sequence[Ranked], paths: Paths, groups: Groups) -> Signatures:
    """Return the signatures of all ranks with their paths and groups made comparable."""
    known = [(item.rank, item.record) for item in ranked if isinstance(item.record, events.Signature)]
    keys = _keys(_integers(rank for rank, _ in known), _integers(record.signature for _, record in known))
    members = [groups.of(rank, record.group) for rank, record in known]
    places = [paths.id_of(rank, record.path) for rank, record in known]
    # Ranks share most of their records, and then a row will do for all of them.
    distinct: dict[tuple[int, int, int], int] = {}
    row_of = _integers(
        distinct.setdefault((id(record), place, id(membership)), len(distinct))
        for (_, record), place, membership in zip(known, places, members, strict=True)
    )
    firsts = np.unique(row_of, return_index=True)[1].tolist()
    lost = groups.of(_NOBODY, UNKNOWN)
    records = [*(known[first][1] for first in firsts), _NO_SIGNATURE]
    of_rows = [*(members[first] for first in firsts), lost]
    columns = {name: objects(getattr(record, name) for record in records) for name in _NO_SIGNATURE.__struct_fields__}
    columns |= {
        "path": objects([*(places[first] for first in firsts), paths.id_of(_NOBODY, _NO_SIGNATURE.path)]),
        "members": objects(membership.members for membership in of_rows),
        "group_key": objects(membership.key for membership in of_rows),
        "numel": objects(sum(math.prod(shape) for shape in record.shapes) for record in records),
    }
    order = np.argsort(keys, kind="stable")
    return Signatures(keys=keys[order], rows=row_of[order], columns=columns)


def calls_frame(calls: Columns, dones: Columns, signatures: Signatures) -> pd.DataFrame:
    """Return one row per call, ordered by rank and number, with its signature and its end where that is known."""
    numbers = calls.integers("call")
    keys = _keys(calls.ranks, numbers)
    order = _first_of_each(keys)
    rows = signatures.rows_of(calls.ranks, calls.integers("signature"))[order]
    values: dict[str, Any] = {"rank": calls.ranks[order], "call": numbers[order]}
    for name in ("seq", "step", "forwards", "backwards", "start_ns", "chain", "path_chain"):
        values[name] = calls.integers(name)[order]
    for name in ("contended", "captured"):
        values[name] = _if_any(calls.booleans(name)[order])
    values["coalesced"] = _nullable(calls.integers("coalesced")[order], calls.gaps("coalesced")[order])
    values["handling"] = _texts_or_none(calls, "handling", order)
    codes, texts = calls.texts("phase")
    values["phase"] = _categories(codes[order], texts)
    values |= _ends(dones, keys[order])
    values |= _signed(signatures, rows)
    return frame(CALL_COLUMNS, values)


def _signed(signatures: Signatures, rows: Integers) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, column in signatures.columns.items():
        dtype = CALL_COLUMNS.get(name)
        if dtype == "category":
            codes, texts = pd.factorize(column)
            values[name] = _categories(codes[rows], list(texts))
        elif dtype == "object":
            equal = all(value is column[0] for value in column)  # None, or no tuple but the empty one
            values[name] = constant(column[0], len(rows)) if equal else column[rows]
        elif dtype == "Int64":
            gaps = np.array([value is None for value in column], dtype=bool)
            values[name] = _nullable(_integers(value or 0 for value in column)[rows], gaps[rows])
        elif dtype is not None:
            values[name] = column.astype(dtype)[rows]
    return values


def _ends(dones: Columns, keys: Integers) -> dict[str, Any]:
    done_keys = _keys(dones.ranks, dones.integers("call"))
    failed = dones.booleans("failed")
    order = np.argsort(done_keys, kind="stable")
    if not _starts(done_keys[order]).all():
        # A poll may have said done before the wait raised, so failed wins; else the earliest sight is nearest.
        order = np.lexsort((dones.integers("end_ns"), ~failed, done_keys))
    kept = order[_starts(done_keys[order])]
    row = _looked_up(done_keys[kept], kept, keys, -1)
    unknown = row < 0
    if not len(kept):
        return _no_ends(len(keys))
    row = np.where(unknown, 0, row)
    values: dict[str, Any] = {
        name: _nullable(dones.integers(name)[row], dones.gaps(name)[row] | unknown) for name in _DONE_INTEGERS
    }
    values["failed"] = _if_any(failed[row] & ~unknown)
    for name in ("clock", "error"):
        values[name] = _texts_or_none(dones, name, row, unknown)
    return values


def _no_ends(size: int) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(_DONE_INTEGERS, _no_integers(size))
    values["failed"] = constant(False, size)
    return values | dict.fromkeys(("clock", "error"), constant(None, size))


def _keys(ranks: Integers, numbers: Integers) -> Integers:
    return (ranks << _RANK_SHIFT) + numbers


def _first_of_each(keys: Integers) -> Integers:
    order = np.argsort(keys, kind="stable")
    return order[_starts(keys[order])]


def _starts(ordered: Integers) -> Booleans:
    starts = np.ones(len(ordered), dtype=bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    return starts


def _looked_up(keys: Integers, values: Integers, wanted: Integers, missing: int) -> Integers:
    if not len(keys):
        return np.full(len(wanted), missing, dtype=np.int64)
    position = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[position] == wanted, values[position], missing)


def _nullable(values: Integers, gaps: Booleans) -> pd.arrays.IntegerArray:
    return _no_integers(len(values)) if gaps.all() else pd.arrays.IntegerArray(values, gaps)


def _no_integers(size: int) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(constant(0, size), constant(True, size))


def _if_any(values: Booleans) -> Booleans:
    return values if values.any() else constant(False, len(values))


def _texts_or_none(columns: Columns, name: str, order: Integers, unknown: Booleans | None = None) -> Objects:
    codes, texts = columns.texts(name)
    if not texts:
        nothing: Objects = constant(None, len(order))
        return nothing
    found = objects([*texts, None])[codes[order]]
    if unknown is not None:
        found[unknown] = None
    return found


def _categories(codes: Integers, texts: Sequence[str]) -> pd.Categorical:
    # Sorted, so that the order of files shows nowhere.
    order = sorted(range(len(texts)), key=texts.__getitem__)
    position = np.empty(len(texts), dtype=np.int64)
    position[order] = np.arange(len(texts))
    categories = pd.Index([texts[place] for place in order], dtype="object")
    return pd.Categorical.from_codes(position[codes] if len(texts) else codes, categories=categories)


def _integers(values: Any) -> Integers:
    return np.fromiter(values, dtype=np.int64)
