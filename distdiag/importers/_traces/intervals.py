"""Sets of moments as sorted, disjoint intervals of whole nanoseconds."""

from dataclasses import dataclass

import numpy as np

from distdiag.importers._traces.times import Numbers


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
