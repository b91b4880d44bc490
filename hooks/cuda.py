"""Watches collectives on CUDA devices, where the host runs ahead and its clock measures queueing.

No Work is held: it owns its outputs. When a rank's own work reached a collective is told by an event on the
current stream, recorded before the collective is enqueued; that a collective ended, by NCCL's flight recorder
(or, asked for, by the group's completion hook). Nothing here waits for the device, and nothing asks it
anything while a stream is being captured into a graph.
"""

import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Protocol

from distdiag import events
from distdiag.errors import guard
from distdiag.hooks._patch import Undo, observe, together, when_imported
from distdiag.recorder import Flight, GroupState, Recorder
from distdiag.settings import OFF_WORDS

MAX_ARRIVALS = 4096
RECALIBRATE_NS = 60_000_000_000
"""Host and device clocks drift by some microseconds a second."""
COMPLETION_HOOK = "DISTDIAG_NCCL_COMPLETION_HOOK"
"""Off by default: with such a hook ``destroy_process_group`` waits for all pending work, for ever in a hung job."""
DEVICE_TIMES = "DISTDIAG_DEVICE_TIMES"


def install(recorder: Recorder) -> Undo:
    """Record device times of collectives and the replays of CUDA graphs."""
    undos = [when_imported("torch.cuda.graphs", lambda module: _watch_graphs(recorder, module))]
    if os.environ.get(DEVICE_TIMES, "").lower() not in OFF_WORDS:
        undos.append(when_imported("torch.cuda", lambda module: _watch_device(recorder, module)))
    return together(undos)


def _watch_device(recorder: Recorder, cuda: Any) -> Undo:
    calls = DeviceCalls(recorder, cuda)
    recorder.note_arrival = calls.issued
    recorder.tend_device = calls.tend
    if os.environ.get(COMPLETION_HOOK, "off").lower() not in OFF_WORDS:
        recorder.adopt_group = calls.listen

    def undo() -> None:
        recorder.note_arrival = lambda flight, state: None
        recorder.tend_device = lambda: None
        recorder.adopt_group = lambda group, state: None

    return undo


class TimingEvent(Protocol):
    """What is used of ``torch.cuda.Event``."""

    def record(self, stream: Any = None) -> None:
        """Enqueue the event on a stream, the current one by default."""

    def query(self) -> bool:
        """Return whether the device has passed the event."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this event to another."""


class DeviceClock:
    """Puts events of a device on the host's monotonic clock.

    A base event goes to a stream of its own, where nothing is queued before it; the host time of that moment
    belongs to it. The error is the time such an event takes to reach the device, some ten microseconds.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._stream = cuda.Stream()
        self._base: tuple[TimingEvent, int] | None = None
        self._next: tuple[TimingEvent, int] | None = None

    def tend(self) -> None:
        """Renew the base now and then; never waits."""
        now = time.monotonic_ns()
        if self._next is not None and self._next[0].query():
            self._base, self._next = self._next, None
        if self._next is None and (self._base is None or now - self._base[1] > RECALIBRATE_NS):
            event = self._cuda.Event(enable_timing=True)
            now = time.monotonic_ns()
            event.record(self._stream)
            self._next = (event, now)

    def host_ns(self, event: TimingEvent) -> int | None:
        """Return when the device passed an event that it has passed, None before the clock is set."""
        if self._base is None:
            return None
        base, base_ns = self._base
        return base_ns + int(base.elapsed_time(event) * 1e6)


class DeviceCalls:
    """Calls on device tensors whose end is not known yet, without their Work."""

    def __init__(self, recorder: Recorder, cuda: Any) -> None:
        self._recorder = recorder
        self._cuda = cuda
        self._clock: DeviceClock | None = None
        self._spare: list[TimingEvent] = []
        self._arrivals: deque[tuple[Flight, TimingEvent]] = deque()
        self._arrived: dict[int, int] = {}
        self._pending: dict[GroupState, deque[Flight]] = {}
        self.status: Callable[[], Iterable[tuple[str, int]]] = last_completed

    def issued(self, flight: Flight, state: GroupState) -> None:
        """Note a call just before it is enqueued: mark the current stream unless it is being captured."""
        pending = self._pending.setdefault(state, deque(maxlen=MAX_ARRIVALS))
        if self._recorder.capturing:
            return
        pending.append(flight)
        event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
        event.record()
        self._arrivals.append((flight, event))
        if len(self._arrivals) > MAX_ARRIVALS:
            self._arrivals.popleft()

    def tend(self) -> None:
        """Look, from the pulse's thread, which calls were reached and which ended."""
        if self._recorder.capturing or not self._cuda.is_initialized():
            return
        if self._clock is None:
            self._clock = DeviceClock(self._cuda)
        self._clock.tend()
        self._collect_arrivals(self._clock)
        with guard("read the flight recorder"):
            for group, sequence in self.status():
                self._end_up_to(group, sequence)

    def _collect_arrivals(self, clock: DeviceClock) -> None:
        while self._arrivals and self._arrivals[0][1].query():
            flight, event = self._arrivals.popleft()
            arrive_ns = clock.host_ns(event)
            self._spare.append(event)
            if arrive_ns is not None:
                self._arrived[flight.call] = arrive_ns

    def _end_up_to(self, group: str, sequence: int) -> None:
        now = time.monotonic_ns()
        for state, pending in list(self._pending.items()):
            if state.p2p:
                continue  # NCCL counts sends apart, but tells the number of the last one of either kind
            while state.event.group == group and pending and pending[0].sequence <= sequence:
                self._write_end(pending.popleft(), now, None)

    def _write_end(self, flight: Flight, end_ns: int, duration_ns: int | None) -> None:
        self._recorder.write(
            events.Done(
                call=flight.call,
                end_ns=end_ns,
                clock="poll" if duration_ns is None else "device",
                arrive_ns=self._arrived.pop(flight.call, None),
                duration_ns=duration_ns,
            )
        )

    def listen(self, group: Any, state: GroupState) -> None:
        """Learn of a group's ends from NCCL itself; only before its first collective."""
        if state.event.backend != "nccl" or state.collectives:
            return

        def ended(work: Any) -> None:
            with guard("note the end of a device call"):
                pending = self._pending.get(state, deque())
                for flight in list(pending):
                    if flight.sequence == work.seq:
                        pending.remove(flight)
                        lag_ns = int((time.time() - work.time_finished.timestamp()) * 1e9)
                        duration_ns = int(work.active_duration.total_seconds() * 1e9)
                        self._write_end(flight, time.monotonic_ns() - max(lag_ns, 0), duration_ns)

        group._register_on_completion_hook(ended)


_group_names: dict[str, str] = {}
"""Names of groups by the process-local numbers that the flight recorder gives them."""


def last_completed() -> Iterable[tuple[str, int]]:
    """Return (group, last completed collective) from NCCL's flight recorder, nothing where there is none.

    The status knows groups by number alone; the entries, which take long to read, tell the names once.
    """
    from torch._C import _distributed_c10d as c10d

    dump = getattr(c10d, "_dump_nccl_trace", None)
    if dump is None:
        return []
    status = pickle.loads(dump(includeCollectives=False, includeStackTraces=False, onlyActive=False))["pg_status"]
    if not _group_names.keys() >= status.keys():
        _group_names.update(dict.fromkeys(status, ""))  # one without entries would be looked for at every pulse
        trace = pickle.loads(dump(includeCollectives=True, includeStackTraces=False, onlyActive=False))
        _group_names.update({str(each["pg_id"]): str(each["process_group"][0]) for each in trace.get("entries", [])})
    return [
        (_group_names[number], int(each["last_completed_collective"]))
        for number, each in status.items()
        if _group_names[number]
    ]


def _watch_graphs(recorder: Recorder, graphs: ModuleType) -> Undo:
    observer = Graphs(recorder)
    owner = graphs.CUDAGraph
    undos = []
    for name in ("capture_begin", "capture_end", "replay"):
        if hasattr(owner, name):
            undos.append(observe(owner, name, getattr(observer, name)))
    return together(undos)


class Graphs:
    """Which calls a CUDA graph contains, and when it runs them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._captured: dict[int, tuple[int, int]] = {}
        self._first = 0
        self._graphs = 0
        self.capture_begin = _Moment(before=self._begin, failed=self._abandon)
        self.capture_end = _Moment(after=self._end)
        self.replay = _Moment(before=self._replay)

    def _begin(self, graph: Any) -> None:
        self._graphs += 1
        self._first = self._recorder.calls + 1
        self._recorder.capturing = self._graphs

    def _abandon(self, graph: Any) -> None:
        self._recorder.capturing = 0

    def _end(self, graph: Any) -> None:
        self._recorder.capturing = 0
        self._captured[id(graph)] = (self._first, self._recorder.calls)

    def _replay(self, graph: Any) -> None:
        first, last = self._captured.get(id(graph), (0, -1))
        self._recorder.write(
            events.Replay(
                time_ns=time.monotonic_ns(), step=self._recorder.step, calls=[first, last] if first <= last else []
            )
        )


class _Moment:
    """An observer of one moment of a method call: before it, after it, or when it failed."""

    def __init__(
        self,
        *,
        before: Callable[[Any], None] | None = None,
        after: Callable[[Any], None] | None = None,
        failed: Callable[[Any], None] | None = None,
    ) -> None:
        self._before = before
        self._after = after
        self._failed = failed or after

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._before is not None:
            self._before(args[0])
        return args[0] if self._after or self._failed else None

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        act = self._after if error is None else self._failed
        if act is not None:
            act(token)
