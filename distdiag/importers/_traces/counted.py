"""Which work of a trace counts: what the host launched before the last step, because that may be cut."""

import numpy as np
import numpy.typing as npt

from distdiag.importers._traces.times import Numbers
from distdiag.importers._traces.trace import Trace

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
