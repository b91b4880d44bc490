"""Measures what each device of a trace did, exactly.

The definitions are HTA's, with what is wrong in them put right. Device activity is kernels and copies on a stream,
never annotations or synchronisation. The last step of a trace is left out, because it may be cut: what was
*launched* before that step counts. The window reaches from the first start to the last end of what counts, and
everything the device did in it is busy time, whoever launched it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distdiag.importers._traces.counted import Counted, Mask
from distdiag.importers._traces.times import Gaps, Intervals, Numbers, gaps, together, union
from distdiag.importers._traces.trace import COMMUNICATION, COMPUTE, MEMORY, Trace

SHORT_GAP_NS = 30_000
"""A device needs a few microseconds from one kernel to the next; longer gaps with work queued have another cause."""
FULL_QUEUE = 1024
"""Launches that CUDA lets wait on a stream before the host blocks."""
MOST_KERNELS = 10
KINDS = {COMPUTE: "compute", COMMUNICATION: "communication", MEMORY: "memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Why a device or stream was idle, in nanoseconds."""

    host_wait_ns: int
    """The host launched the next work only after the last had ended."""
    kernel_wait_ns: int
    """The next work was launched in time and followed within ``SHORT_GAP_NS``."""
    other_wait_ns: int
    """The next work was launched in time and waited for something else, such as another stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """How many launches wait for a stream."""

    mean: float
    """Over time."""
    longest: int
    full_share: float | None
    """Share of the time with at least ``FULL_QUEUE``, where launching blocks; None where the limit is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream of a device."""

    stream: int
    activities: int
    busy_ns: int
    idle: Idle | None
    """None where there is no gap, so no shares of it either."""
    queue: Queue | None
    """None where nothing was launched in this trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """All runs of one kernel."""

    name: str
    kind: str
    count: int
    total_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """What one process group communicated."""

    group: str
    busy_ns: int
    exposed_ns: int
    """While no compute kernel ran."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What was launched in one step."""

    step: int
    activities: int
    compute_ns: int
    communication_ns: int
    exposed_ns: int
    groups: tuple[Communication, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One device of one trace, over its window."""

    device: int
    steps: tuple[int, ...]
    """Numbers of the steps that were measured; empty where the trace has fewer than two."""
    window_start_ns: int
    window_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    exposed_ns: int
    """Communication while no compute kernel ran."""
    memory_ns: int
    activities: int
    """Kernels and copies that count."""
    without_launch: int
    """Kernels and copies of this device whose launch is not in the trace."""
    in_last_step: int
    """Kernels and copies left out because they were launched in the last step."""
    idle: Idle
    launch_delays_ns: tuple[int, int, int] | None
    """From launch to start: a tenth, half and nine tenths of the work starts within these; None without launches."""
    streams: tuple[Stream, ...]
    kernels: tuple[Kernel, ...]
    """Those that took most time."""
    groups: tuple[Communication, ...]
    per_step: tuple[StepWork, ...]
    notes: tuple[str, ...]


def timelines(trace: Trace, short_gap_ns: int = SHORT_GAP_NS) -> Iterator[Timeline]:
    """Yield what each device of a trace did; nothing for a trace without device activity that counts."""
    counted = Counted(trace)
    for device in np.unique(trace.activity.device[counted.kept]).tolist():
        yield _Device(trace, counted, device, short_gap_ns).timeline()


class _Device:
    """The activity of one device, clipped to its window."""

    def __init__(self, trace: Trace, counted: Counted, device: int, short_gap_ns: int) -> None:
        """Clip."""
        activity = trace.activity
        self._trace, self._counted, self._device, self._short_gap_ns = trace, counted, device, short_gap_ns
        self._on_device = activity.device == device
        self._kept = self._on_device & counted.kept
        self._first = int(activity.start_ns[self._kept].min())
        self._last = int(activity.end_ns[self._kept].max())
        overlaps = (activity.start_ns < self._last) & (activity.end_ns > self._first)
        self._rows = np.flatnonzero(self._on_device & overlaps | self._kept)
        self._start = np.maximum(activity.start_ns[self._rows], self._first)
        self._end = np.minimum(activity.end_ns[self._rows], self._last)
        self._kind, self._stream = activity.kind[self._rows], activity.stream[self._rows]
        self._launched = counted.launched_ns[self._rows]
        self._step = counted.step[self._rows]
        self._everything = np.ones(len(self._rows), dtype=bool)

    def timeline(self) -> Timeline:
        """Return what the device did."""
        everything = union(self._start, self._end)
        compute, communication, memory = (self._of_kind(kind) for kind in (COMPUTE, COMMUNICATION, MEMORY))
        window_ns = self._last - self._first
        return Timeline(
            device=self._device,
            steps=self._counted.steps,
            window_start_ns=self._first + self._trace.base_ns,
            window_ns=window_ns,
            idle_ns=window_ns - everything.covered_ns,
            compute_ns=compute.covered_ns,
            communication_ns=communication.covered_ns,
            exposed_ns=_beside_ns(communication, compute),
            memory_ns=memory.covered_ns,
            activities=int(self._kept.sum()),
            without_launch=int((self._on_device & ~self._counted.launched).sum()),
            in_last_step=int((self._on_device & self._counted.launched & ~self._kept).sum()),
            idle=self._idle(gaps(self._start, self._end), self._launched),
            launch_delays_ns=self._delays(),
            streams=tuple(self._streams()),
            kernels=self._kernels(),
            groups=self._groups(compute, self._everything),
            per_step=tuple(self._per_step(compute)),
            notes=self._counted.notes,
        )

    def _of_kind(self, kind: int) -> Intervals:
        chosen = self._kind == kind
        return union(self._start[chosen], self._end[chosen])

    def _idle(self, found: Gaps, launched_ns: Numbers) -> Idle:
        late = launched_ns[found.ended_by] > found.begin_ns
        short = ~late & (found.length_ns < self._short_gap_ns)
        return Idle(
            host_wait_ns=int(found.length_ns[late].sum()),
            kernel_wait_ns=int(found.length_ns[short].sum()),
            other_wait_ns=int(found.length_ns[~late & ~short].sum()),
        )

    def _delays(self) -> tuple[int, int, int] | None:
        counted = self._kept & self._counted.launched
        if not counted.any():
            return None
        delays = self._trace.activity.start_ns[counted] - self._counted.launched_ns[counted]
        tenth, half, most = np.quantile(delays, (0.1, 0.5, 0.9)).round().astype(np.int64).tolist()
        return tenth, half, most

    def _streams(self) -> Iterator[Stream]:
        for stream in np.unique(self._stream).tolist():
            here = self._stream == stream
            found = gaps(self._start[here], self._end[here])
            yield Stream(
                stream=stream,
                activities=int(here.sum()),
                busy_ns=union(self._start[here], self._end[here]).covered_ns,
                idle=self._idle(found, self._launched[here]) if len(found.length_ns) else None,
                queue=self._queue(stream),
            )

    def _queue(self, stream: int) -> Queue | None:
        """Return the queue of a stream, from the launches of what counts."""
        counted = self._kept & self._counted.launched & (self._trace.activity.stream == stream)
        launched, started = self._counted.launched_ns[counted], self._trace.activity.start_ns[counted]
        if not len(launched):
            return None
        moments = np.append(launched, started)
        order = np.lexsort((np.append(np.zeros(len(launched)), np.ones(len(started))), moments))
        length = np.cumsum(np.append(np.ones(len(launched), np.int64), -np.ones(len(started), np.int64))[order])
        lasted = np.diff(moments[order])
        total = max(1, int(lasted.sum()))
        return Queue(
            mean=float((length[:-1] * lasted).sum() / total),
            longest=int(length.max()),
            full_share=None if self._trace.rocm else float(lasted[length[:-1] >= FULL_QUEUE].sum() / total),
        )

    def _kernels(self) -> tuple[Kernel, ...]:
        """Return what took most time of what counts, by name."""
        activity = self._trace.activity
        key = activity.name[self._kept] * len(KINDS) + activity.kind[self._kept]
        numbers, place, count = np.unique(key, return_inverse=True, return_counts=True)
        duration = activity.end_ns[self._kept] - activity.start_ns[self._kept]
        total, longest = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
        np.add.at(total, place, duration)
        np.maximum.at(longest, place, duration)
        found = [
            Kernel(
                name=self._trace.names[number // len(KINDS)],
                kind=KINDS[number % len(KINDS)],
                count=runs,
                total_ns=sum_ns,
                longest_ns=most_ns,
            )
            for number, runs, sum_ns, most_ns in np.stack([numbers, count, total, longest], axis=1).tolist()
        ]
        return tuple(sorted(found, key=lambda each: (-each.total_ns, each.name, each.kind))[:MOST_KERNELS])

    def _groups(self, compute: Intervals, of: Mask) -> tuple[Communication, ...]:
        communicates = of & (self._kind == COMMUNICATION)
        group = np.where(communicates, self._trace.activity.group[self._rows], -1)
        found = []
        for number in np.unique(group[group >= 0]).tolist():
            busy = union(self._start[group == number], self._end[group == number])
            named = self._trace.groups[number]
            found.append(
                Communication(
                    group=named.description or named.name,
                    busy_ns=busy.covered_ns,
                    exposed_ns=_beside_ns(busy, compute),
                    count=int((group == number).sum()),
                )
            )
        return tuple(found)

    def _per_step(self, compute: Intervals) -> Iterator[StepWork]:
        """Yield the steps; what one of them communicates may hide behind the computing of another."""
        for step in self._counted.steps:
            here = self._step == step
            of_kind = {
                kind: union(self._start[here & (self._kind == kind)], self._end[here & (self._kind == kind)])
                for kind in (COMPUTE, COMMUNICATION)
            }
            yield StepWork(
                step=step,
                activities=int(here.sum()),
                compute_ns=of_kind[COMPUTE].covered_ns,
                communication_ns=of_kind[COMMUNICATION].covered_ns,
                exposed_ns=_beside_ns(of_kind[COMMUNICATION], compute),
                groups=self._groups(compute, here),
            )


def _beside_ns(busy: Intervals, compute: Intervals) -> int:
    """Return how much of ``busy`` nothing of ``compute`` covers."""
    return together(busy, compute).covered_ns - compute.covered_ns
