"""Logs that never were files: the records of other tools' files, as they were made.

Calls and their ends are columns, for there are many; everything else is records. Where somebody asks for the lines of
such a log, or queries it, it is written after all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from distdiag import events

MOST_HELD = 2_000_000
"""Calls; of more, which take gigabytes, logs are written, and read from their ends."""

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Records of one kind as columns of one length. A column that is left out holds what its field is by default."""

    kind: type[events.Event]
    numbers: Mapping[str, npt.NDArray[Any]]
    """Whole numbers and truth values."""
    gaps: Mapping[str, npt.NDArray[np.bool_]]
    """Where a column of numbers has no value."""
    texts: Mapping[str, tuple[npt.NDArray[np.int64], tuple[str, ...]]]
    """Codes, negative where there is no text, and what they stand for."""

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.numbers["call"])

    def records(self) -> Iterator[events.Event]:
        """Yield the records."""
        columns: dict[str, Sequence[Any]] = {name: column.tolist() for name, column in self.numbers.items()}
        for name, gaps in self.gaps.items():
            columns[name] = [None if gap else value for value, gap in zip(columns[name], gaps.tolist(), strict=True)]
        for name, (codes, texts) in self.texts.items():
            columns[name] = [texts[code] if code >= 0 else None for code in codes.tolist()]
        for values in zip(*columns.values(), strict=True):
            yield self.kind(**dict(zip(columns, values, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldLog:
    """The log of one process."""

    name: str
    """Of the file that it would be."""
    rank: int
    attempt: int
    header: events.Header
    records: Sequence[events.Event]
    """All but calls and their ends, the header first."""
    calls: Rows
    dones: Rows

    @property
    def size(self) -> int:
        """Return the number of records."""
        return len(self.records) + len(self.calls) + len(self.dones)

    @property
    def last_ns(self) -> int:
        """Return the last moment that the log tells, 0 where it tells none."""
        for record in reversed(self.records):
            moments = (getattr(record, name, None) or 0 for name in ("time_ns", "start_ns", "end_ns"))
            if moment := max(moments):
                return int(moment)
        return 0

    def written(self) -> bytes:
        """Return the content of the file that it would be."""
        return _encoder.encode_lines([*self.records, *self.calls.records(), *self.dones.records()])
