"""Which work of a trace counts, what the host launched before the last step, and the communication kernels in it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distdiag.importers._traces.times import Numbers
from distdiag.importers._traces.trace import COMMUNICATION, Trace

NO_LAUNCH = np.iinfo(np.int64).min
NO_STEP = -1

Mask = npt.NDArray[np.bool_]


def launches(trace: Trace) -> Numbers:
    """Return for each activity when the host launched it."""
    order = np.lexsort((trace.launch_start_ns, trace.launch_correlation))
    number, first = np.unique(trace.launch_correlation[order], return_index=True)
    start = trace.launch_start_ns[order][first]
    if not len(number):
        return np.full(len(trace.activity.correlation), NO_LAUNCH, dtype=np.int64)
    place = np.minimum(np.searchsorted(number, trace.activity.correlation), len(number) - 1)
    return np.where(number[place] == trace.activity.correlation, start[place], NO_LAUNCH)


class Counted:
    """What counts of a trace.

    ``kept`` are the activities that count, ``step`` numbers the step each of them belongs to, ``launched`` and
    ``launched_ns`` tell whether and when the host launched it, and ``notes`` why it is not otherwise.
    """

    def __init__(self, trace: Trace) -> None:
        """Find the steps, and when the work of the trace was launched."""
        self.launched_ns = launched_ns = launches(trace)
        order = np.argsort(trace.step_start_ns, kind="stable")
        numbers = list(dict.fromkeys(trace.steps[order].tolist()))
        self.launched = launched_ns != NO_LAUNCH
        self.steps: tuple[int, ...] = ()
        self.step = np.full(len(launched_ns), NO_STEP, dtype=np.int64)
        self.notes: tuple[str, ...] = ()
        if len(numbers) < 2:
            self.kept = np.ones(len(launched_ns), dtype=bool)
            self.notes = ("fewer than two steps are marked: the whole trace counts",)
            return
        self.steps = tuple(numbers[:-1])
        last_ns = int(trace.step_start_ns.max())
        begun_ns = launched_ns
        if self.launched.any() or not len(launched_ns):
            self.kept = self.launched & (launched_ns < last_ns)
        else:
            begun_ns = trace.activity.start_ns
            self.kept = begun_ns < last_ns
            self.notes = ("no launches are in the trace: what started before the last step counts",)
        place = np.searchsorted(trace.step_start_ns[order], begun_ns, side="right") - 1
        self.step = np.where(self.kept & (place >= 0), trace.steps[order][np.maximum(place, 0)], NO_STEP)


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
