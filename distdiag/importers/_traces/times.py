"""Moments and durations as whole nanoseconds, taken from the text that a trace holds, and intervals of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

UNKNOWN = -1
"""Stands for a number that an event does not have."""
MAX_NUMBER = 1 << 62
EXACT_IN_DOUBLES = 1e12
"""Microseconds below which a double holds every nanosecond, with room to spare."""
_MICROSECOND_NS = 1000
_MOST_DIGITS = 20

_numbers = msgspec.json.Decoder(list[int])
_fractions = msgspec.json.Decoder(list[float])


def nanoseconds(texts: Sequence[msgspec.Raw]) -> Numbers:
    """Return times, written as microseconds with or without decimals, in nanoseconds; -1 for what is no time.

    Kineto writes either whole numbers or three decimals, in one file always the same; these are read all at once.
    """
    joined = b"[" + b",".join(texts) + b"]"
    try:
        about = np.array(_fractions.decode(joined), dtype=np.float64)
        if len(about) != len(texts):  # a time that is missing leaves nothing between the commas
            raise msgspec.DecodeError
        if np.all(about < EXACT_IN_DOUBLES):
            return _bounded(np.rint(about * _MICROSECOND_NS).astype(np.int64))
        dots = joined.count(b".")
        if dots == len(texts):
            whole = np.array(_numbers.decode(joined.replace(b".", b"")), dtype=np.int64)
            # With fewer or more decimals than three it would be off by a factor of ten.
            if np.all(np.abs(whole / _MICROSECOND_NS - about) <= 1):
                return _bounded(whole)
        elif not dots and np.all(about < MAX_NUMBER / _MICROSECOND_NS):
            return _bounded(np.array(_numbers.decode(joined), dtype=np.int64) * _MICROSECOND_NS)
    except (msgspec.MsgspecError, OverflowError):
        pass
    return np.array([_nanoseconds(bytes(text)) for text in texts], dtype=np.int64)


def _bounded(times: Numbers) -> Numbers:
    return np.where((times >= 0) & (times < MAX_NUMBER), times, UNKNOWN)


def _nanoseconds(text: bytes) -> int:
    try:
        value = Decimal(text.strip(b'"').decode("ascii"))
        exact = int(value.scaleb(3)) if value.is_finite() and value.adjusted() < _MOST_DIGITS else UNKNOWN
    except (InvalidOperation, UnicodeDecodeError):
        return UNKNOWN
    return exact if 0 <= exact < MAX_NUMBER else UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Intervals:
    """Disjoint and in order."""

    start_ns: Numbers
    end_ns: Numbers

    @property
    def covered_ns(self) -> int:
        """Return how much time they cover."""
        return int((self.end_ns - self.start_ns).sum())


def union(start_ns: Numbers, end_ns: Numbers) -> Intervals:
    """Return the moments that any of some intervals covers."""
    if not len(start_ns):
        return Intervals(start_ns=start_ns, end_ns=end_ns)
    order = np.argsort(start_ns, kind="stable")
    start, reached = start_ns[order], np.maximum.accumulate(end_ns[order])
    first = np.ones(len(start), dtype=bool)
    first[1:] = start[1:] > reached[:-1]
    last = np.append(np.flatnonzero(first)[1:] - 1, len(start) - 1)
    return Intervals(start_ns=start[first], end_ns=reached[last])


def together(one: Intervals, other: Intervals) -> Intervals:
    """Return the moments that one or the other covers."""
    return union(np.append(one.start_ns, other.start_ns), np.append(one.end_ns, other.end_ns))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """Times in which nothing runs, each with the row whose start ends it."""

    ended_by: Numbers
    """Index into the rows that were given."""
    begin_ns: Numbers
    length_ns: Numbers


def gaps(start_ns: Numbers, end_ns: Numbers) -> Gaps:
    """Return the times between the first start and the last end that no interval covers."""
    order = np.argsort(start_ns, kind="stable")
    start, reached = start_ns[order], np.maximum.accumulate(end_ns[order]) if len(order) else end_ns
    length = start[1:] - reached[:-1]
    idle = np.flatnonzero(length > 0)
    return Gaps(ended_by=order[idle + 1], begin_ns=reached[idle], length_ns=length[idle])
