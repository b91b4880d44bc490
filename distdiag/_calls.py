"""Calls, their signatures and their ends, joined into one frame with vector operations only."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag import events
from distdiag._frames import CALL_COLUMNS, TIMES, Ranked, frame, objects

Integers = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]

UNKNOWN = "unknown"
"""Group and op of a call whose signature record is lost."""
_RANK_SHIFT = 40
"""Bits left to numbers of calls and signatures in a key of rank and number."""
_NO_SIGNATURE = events.Signature(signature=-1, group=UNKNOWN, op=UNKNOWN, path=0, agree=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Raw columns of call or done records, with the rank of each row and what to add to its clock."""

    ranks: Integers
    offsets: Integers
    arrow: Any

    def integers(self, name: str) -> Integers:
        """Return a column that has no gaps as integers."""
        values = np.asarray(self.arrow[name].to_numpy(), dtype=np.int64)
        return values + self.offsets if name in TIMES else values

    def nullable(self, name: str) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return a column's integers, 0 where it has a gap, and where the gaps are."""
        column = self.arrow[name]
        if not column.null_count:
            return self.integers(name), np.zeros(len(column), dtype=bool)
        values = np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)
        return values + self.offsets if name in TIMES else values, np.asarray(column.is_null().to_numpy())

    def booleans(self, name: str) -> npt.NDArray[np.bool_]:
        """Return a column of truth values."""
        return np.asarray(self.arrow[name].to_numpy(zero_copy_only=False), dtype=bool)

    def texts(self, name: str) -> tuple[Integers, list[str]]:
        """Return a text column as codes, -1 for a gap, and the texts they stand for."""
        coded = self.arrow[name].combine_chunks().dictionary_encode()
        if hasattr(coded, "combine_chunks"):
            coded = coded.combine_chunks()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return codes.astype(np.int64), coded.dictionary.to_pylist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures:
    """All signatures of a run in rows; the last row stands for a signature that is not in the logs."""

    keys: Integers
    rows: Integers
    columns: Mapping[str, Objects]

    def rows_of(self, ranks: Integers, numbers: Integers) -> Integers:
        """Return the row of each (rank, signature number)."""
        missing = len(self.columns["op"]) - 1
        return _looked_up(self.keys, self.rows, _keys(ranks, numbers), missing)


def signatures_of(
    ranked: Sequence[Ranked],
    paths: Mapping[tuple[int, int], int],
    members_of: Callable[[int, str], tuple[int, ...] | None],
) -> Signatures:
    """Return the signatures of all ranks with their paths and groups made global."""
    records = [item.record for item in ranked if isinstance(item.record, events.Signature)]
    ranks = [item.rank for item in ranked if isinstance(item.record, events.Signature)]
    keys = _keys(np.array(ranks, dtype=np.int64), np.array([r.signature for r in records], dtype=np.int64))
    order = np.argsort(keys, kind="stable")
    rows = [*records, _NO_SIGNATURE]
    members = [members_of(rank, record.group) for rank, record in zip([*ranks, -1], rows, strict=True)]
    columns: dict[str, Objects] = {
        name: objects(getattr(record, name) for record in rows) for name in events.Signature.__struct_fields__
    }
    columns["path"] = objects(paths.get((k, r.path), 0) for k, r in zip([*ranks, -1], rows, strict=True))
    columns["members"] = objects(members)
    columns["group_key"] = objects(group_key(r.group, m) for r, m in zip(rows, members, strict=True))
    columns["numel"] = objects(sum(math.prod(shape) for shape in record.shapes) for record in rows)
    return Signatures(keys=keys[order], rows=order.astype(np.int64), columns=columns)


def group_key(group: str, members: tuple[int, ...] | None) -> str:
    """Return a name that is the same on all members of one group and differs between groups."""
    if members is None:
        return f"{group}[?]"
    return f"{group}[{folded(members)}]"


def folded(ranks: Sequence[int]) -> str:
    """Return ranks in short: ``0-2,5``; the order is kept, for it is part of what a group is."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


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
        values[name] = calls.booleans(name)[order]
    values["coalesced"] = _integers_or_na(*calls.nullable("coalesced"), order)
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
            values[name] = column[rows]
        elif dtype == "Int64":
            gaps = np.array([value is None for value in column], dtype=bool)
            filled = np.array([value or 0 for value in column], dtype=np.int64)
            values[name] = _integers_or_na(filled, gaps, rows)
        elif dtype is not None:
            values[name] = column.astype(dtype)[rows]
    return values


def _ends(dones: Columns, keys: Integers) -> dict[str, Any]:
    done_keys = _keys(dones.ranks, dones.integers("call"))
    failed = dones.booleans("failed")
    end, no_end = dones.nullable("end_ns")
    # A poll may have said done before the wait raised, so failed wins; else the earliest sight is nearest to the end.
    order = np.lexsort((end, ~failed, done_keys))
    kept = order[_starts(done_keys[order])]
    row = _looked_up(done_keys[kept], kept, keys, -1)
    unknown = row < 0
    row = np.where(unknown, 0, row)
    values: dict[str, Any] = {}
    if not len(kept):
        values = {name: pd.array([pd.NA] * len(keys), dtype="Int64") for name in _DONE_INTEGERS}
        values["failed"] = np.zeros(len(keys), dtype=bool)
        return values | {name: objects([None] * len(keys)) for name in ("clock", "error")}
    for name in _DONE_INTEGERS:
        column, gaps = (end, no_end) if name == "end_ns" else dones.nullable(name)
        values[name] = pd.arrays.IntegerArray(column[row], gaps[row] | unknown)
    values["failed"] = failed[row] & ~unknown
    for name in ("clock", "error"):
        texts = _texts_or_none(dones, name, row)
        texts[unknown] = None
        values[name] = texts
    return values


_DONE_INTEGERS = ("end_ns", "wait_start_ns", "arrive_ns", "duration_ns")


def _keys(ranks: Integers, numbers: Integers) -> Integers:
    return (ranks << _RANK_SHIFT) + numbers


def _first_of_each(keys: Integers) -> Integers:
    order = np.argsort(keys, kind="stable")
    return order[_starts(keys[order])]


def _starts(ordered: Integers) -> npt.NDArray[np.bool_]:
    starts = np.ones(len(ordered), dtype=bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    return starts


def _looked_up(keys: Integers, values: Integers, wanted: Integers, missing: int) -> Integers:
    if not len(keys):
        return np.full(len(wanted), missing, dtype=np.int64)
    position = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[position] == wanted, values[position], missing)


def _integers_or_na(values: Integers, gaps: npt.NDArray[np.bool_], order: Integers) -> "pd.arrays.IntegerArray":
    return pd.arrays.IntegerArray(values[order], gaps[order])


def _texts_or_none(columns: Columns, name: str, order: Integers) -> Objects:
    codes, texts = columns.texts(name)
    return objects([*texts, None])[codes[order]]


def _categories(codes: Integers, texts: list[str]) -> pd.Categorical:
    # Sorted, so that the order of files shows nowhere.
    order = sorted(range(len(texts)), key=texts.__getitem__)
    position = np.empty(len(texts), dtype=np.int64)
    position[order] = np.arange(len(texts))
    categories = pd.Index([texts[i] for i in order], dtype="object")
    return pd.Categorical.from_codes(position[codes] if len(texts) else codes, categories=categories)
