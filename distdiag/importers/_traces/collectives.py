"""The communication kernels of a trace, so that those of several ranks can be matched."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distdiag.importers._traces.counted import NO_STEP, Counted
from distdiag.importers._traces.times import Numbers
from distdiag.importers._traces.trace import COMMUNICATION, Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collectives:
    """Communication kernels in the order of their start; sends and receives that say so are none."""

    group: Sequence[str]
    """The same text on all ranks of a process group; of kernels that name none, their stream."""
    step: Numbers
    number: Numbers
    """c10d's number where the kernel tells it, else its place among the group's kernels of the step."""
    start_ns: Numbers
    duration_ns: Numbers


def collectives(trace: Trace) -> Collectives:
    """Return the communication kernels of the measured steps.

    Where no steps are marked it is those that tell their number, without a step.
    """
    activity, counted = trace.activity, Counted(trace)
    told = (counted.step != NO_STEP) if counted.steps else (activity.seq >= 0)
    rows = np.flatnonzero(counted.kept & told & (activity.kind == COMMUNICATION) & (activity.p2p == 0))
    rows = rows[np.argsort(activity.start_ns[rows], kind="stable")]
    groups = [_group_of(trace, int(row)) for row in rows]
    return Collectives(
        group=groups,
        step=counted.step[rows],
        number=_numbers(groups, counted.step[rows].tolist(), activity.seq[rows].tolist()),
        start_ns=activity.start_ns[rows] + trace.base_ns,
        duration_ns=activity.end_ns[rows] - activity.start_ns[rows],
    )


def _group_of(trace: Trace, row: int) -> str:
    number = int(trace.activity.group[row])
    if number < 0:
        return f"stream {trace.activity.stream[row]}"
    group = trace.groups[number]
    return f"{group.description or group.name} {group.name} {group.members}".strip()


def _numbers(groups: Sequence[str], steps: Sequence[int], told: Sequence[int]) -> Numbers:
    """Return the number of each collective in its group; kernels of one that is told twice count on."""
    seen: Counter[tuple[str, int]] = Counter()
    numbers = []
    for group, step, number in zip(groups, steps, told, strict=True):
        numbers.append(number if number >= 0 else seen[group, step])
        seen[group, step] += 1
    return np.array(numbers, dtype=np.int64)
