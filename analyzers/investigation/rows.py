"""Rows of a run's frames one by one, where vector operations end and reasoning about single records begins."""

from collections import namedtuple
from collections.abc import Iterable
from functools import cache
from typing import Any

import pandas as pd


def records(frame: pd.DataFrame) -> Iterable[Any]:
    """Return the rows of a small frame with their columns as attributes."""
    if frame.empty:
        return ()
    # ``itertuples`` makes a class each time and looks each column up anew: of a few rows that takes longest.
    return map(_row_of(tuple(frame.columns))._make, zip(*(column for _, column in frame.items()), strict=True))


@cache
def _row_of(columns: tuple[str, ...]) -> Any:
    return namedtuple("Row", columns)


def newest(frame: pd.DataFrame, column: str = "time_ns") -> "pd.Series[Any]":
    """Return the row with the greatest value of a column; of equal ones the last."""
    return frame.sort_values(column, kind="stable").iloc[-1]


def oldest(frame: pd.DataFrame, column: str = "time_ns") -> "pd.Series[Any]":
    """Return the row with the smallest value of a column; of equal ones the first."""
    return frame.sort_values(column, kind="stable").iloc[0]


def by_rank(values: "pd.Series[Any]") -> dict[int, Any]:
    """Return a series indexed by rank as a mapping."""
    return {int(str(rank)): value for rank, value in values.items()}


def whole(value: Any) -> int | None:
    """Return a value as an integer, None for a gap."""
    return None if pd.isna(value) else int(value)


def text(value: Any) -> str | None:
    """Return a value that is a text, None for a gap."""
    return value if isinstance(value, str) else None
