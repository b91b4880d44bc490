"""Collectives on CUDA devices, with a device that is pretended: when they were reached, and when they ended."""

import pickle
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed

from distdiag import events
from distdiag.hooks import cuda
from distdiag.recorder import Flight, GroupState, Interned
from tests.recordings import Recording, recording

dist: Any = torch.distributed

MILLISECOND_NS = 1_000_000


class Device:
    """A device whose work is done when a test says so; it stands in for ``torch.cuda``."""

    def __init__(self) -> None:
        self.capturing = False
        self.initialized = True
        self.enqueued: list[DeviceEvent] = []

    def is_initialized(self) -> bool:
        return self.initialized

    def Stream(self) -> str:  # noqa: N802 - as torch names it
        return "another stream"

    def Event(self, *, enable_timing: bool) -> "DeviceEvent":  # noqa: N802
        assert enable_timing
        return DeviceEvent(self)

    def work_off(self, *, until: int | None = None) -> None:
        """Pass the events that are enqueued, or the first few of them."""
        for event in self.enqueued[:until]:
            event.passed_ns = event.passed_ns or time.monotonic_ns()


class DeviceEvent:
    """A mark in a stream; on a stream of its own nothing is before it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.passed_ns: int | None = None

    def record(self, stream: Any = None) -> None:
        assert not self.device.capturing, "an event would become part of the graph"
        self.passed_ns = time.monotonic_ns() if stream is not None else None
        if stream is None:
            self.device.enqueued.append(self)

    def query(self) -> bool:
        assert not self.device.capturing, "a query would break the capture"
        return self.passed_ns is not None

    def elapsed_time(self, end: "DeviceEvent") -> float:
        assert self.passed_ns is not None
        assert end.passed_ns is not None
        return (end.passed_ns - self.passed_ns) / MILLISECOND_NS


class Calls:
    """Calls of one group on the device, and what is recorded of them."""

    def __init__(self, made: Recording) -> None:
        self.made = made
        self.device = Device()
        self.calls = cuda.DeviceCalls(made.recorder, self.device)
        self.completed: list[tuple[str, int]] = []
        self.calls.status = lambda: self.completed
        self.state = self.group("7")

    def group(self, name: str) -> GroupState:
        return GroupState(events.Group(group=name, ranks=[0, 1], backend="nccl", time_ns=0))

    def issue(self, state: GroupState | None = None, *, p2p: bool = False) -> Flight:
        """Note a call as the kernel does just before it goes on to the backend."""
        state = state or self.state
        recorder = self.made.recorder
        recorder.calls += 1
        if p2p:
            state.p2p += 1
        else:
            state.collectives += 1
        op = "send" if p2p else "all_reduce"
        signature = events.Signature(signature=1, group=state.event.group, op=op, p2p=p2p, path=0, agree=0)
        flight = Flight()
        flight.call, flight.signature = recorder.calls, Interned(signature)
        flight.sequence = state.p2p if p2p else state.collectives
        flight.start_ns, flight.wait_start_ns, flight.work = time.monotonic_ns(), 0, None
        self.calls.issued(flight, state)
        return flight

    def tend(self) -> None:
        """Do what the pulse does each second."""
        self.calls.tend()

    def done(self) -> dict[int, events.Done]:
        return {each.call: each for each in self.made.log.of(events.Done)}


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[Calls]:
    """Record calls on a pretended device."""
    with recording(tmp_path) as made:
        yield Calls(made)


def test_call_ends_when_nccl_says_so(calls: Calls) -> None:
    first, second = calls.issue(), calls.issue()
    calls.completed = [("7", 1)]

    calls.tend()

    assert list(calls.done()) == [first.call]
    assert calls.done()[first.call].clock == "poll"
    calls.completed = [("7", 2)]
    calls.tend()
    assert list(calls.done()) == [first.call, second.call]


def test_status_of_one_group_says_nothing_of_another(calls: Calls) -> None:
    calls.issue()
    other = calls.issue(calls.group("8"))
    calls.completed = [("8", 1)]

    calls.tend()

    assert list(calls.done()) == [other.call]


def test_status_of_a_group_that_also_sends_says_nothing_of_its_calls(calls: Calls) -> None:
    for _ in range(3):
        calls.issue(p2p=True)
    calls.issue()
    calls.completed = [("7", 3)]  # NCCL tells the number of the last one, send or collective

    calls.tend()

    assert calls.done() == {}


def test_arrival_is_when_the_device_passed_what_was_before_the_call(calls: Calls) -> None:
    calls.tend()  # puts the clock of the device on that of the host
    calls.tend()
    flight = calls.issue()
    time.sleep(0.01)
    before_ns = time.monotonic_ns()
    calls.device.work_off()
    after_ns = time.monotonic_ns()
    calls.completed = [("7", 1)]

    calls.tend()

    arrive_ns = calls.done()[flight.call].arrive_ns
    assert arrive_ns is not None
    assert before_ns - MILLISECOND_NS <= arrive_ns <= after_ns + MILLISECOND_NS
    assert arrive_ns - flight.start_ns >= 10 * MILLISECOND_NS - MILLISECOND_NS


def test_arrival_before_the_clock_is_set_is_left_out(calls: Calls) -> None:
    flight = calls.issue()
    calls.device.work_off()
    calls.completed = [("7", 1)]

    calls.tend()

    assert calls.done()[flight.call].arrive_ns is None


def test_events_are_used_again(calls: Calls) -> None:
    for _ in range(5):
        calls.issue()
        calls.device.work_off()
        calls.tend()

    assert len(set(map(id, calls.device.enqueued))) == 1


def test_device_that_stands_still_does_not_fill_the_memory(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "MAX_ARRIVALS", 8)

    for _ in range(100):
        calls.issue()

    assert len(calls.calls._arrivals) == 8
    assert len(calls.calls._pending[calls.state]) == 8


def test_device_is_not_asked_before_the_job_uses_it(calls: Calls) -> None:
    calls.device.initialized = False

    calls.tend()

    assert calls.calls._clock is None


def test_nothing_is_asked_of_a_device_while_a_graph_is_captured(calls: Calls) -> None:
    calls.issue()
    calls.device.capturing = True
    calls.made.recorder.capturing = 1
    calls.completed = [("7", 2)]

    calls.issue()
    calls.tend()

    assert calls.done() == {}


def test_captured_call_gets_no_end(calls: Calls) -> None:
    calls.made.recorder.capturing = 1
    calls.issue()
    calls.made.recorder.capturing = 0
    calls.completed = [("7", 1)]

    calls.tend()

    assert calls.done() == {}


def test_completion_hook_tells_end_and_duration(calls: Calls) -> None:
    listeners: list[Any] = []
    calls.calls.listen(SimpleNamespace(_register_on_completion_hook=listeners.append), calls.state)
    first, second = calls.issue(), calls.issue()
    finished = SimpleNamespace(
        seq=2, time_finished=datetime.now() - timedelta(seconds=1), active_duration=timedelta(milliseconds=5)
    )

    ended_ns = time.monotonic_ns() - 1_000_000_000
    listeners[0](finished)

    (done,) = calls.done().values()
    assert done.call == second.call != first.call
    assert done.clock == "device"
    assert done.duration_ns == 5 * MILLISECOND_NS
    assert done.end_ns == pytest.approx(ended_ns, abs=200 * MILLISECOND_NS)


def test_completion_hook_is_not_put_on_groups_that_are_in_use(calls: Calls) -> None:
    listeners: list[Any] = []
    calls.issue()

    calls.calls.listen(SimpleNamespace(_register_on_completion_hook=listeners.append), calls.state)

    assert listeners == []


def test_status_is_read_from_the_flight_recorder_by_the_names_of_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = {
        "entries": [
            {"pg_id": 6, "process_group": ("43", "PIPELINE")},
            {"pg_id": 0, "process_group": ("0", "default_pg")},
        ],
        "pg_status": {
            "0": {"last_enqueued_collective": 163, "last_completed_collective": 160},
            "6": {"last_enqueued_collective": 11986, "last_completed_collective": 11983},
            "9": {"last_enqueued_collective": 5, "last_completed_collective": 5},
        },
    }
    monkeypatch.setattr(
        torch._C._distributed_c10d, "_dump_nccl_trace", lambda **_options: pickle.dumps(trace), raising=False
    )

    assert sorted(cuda.last_completed()) == [("0", 160), ("43", 11983)]


def test_status_is_empty_where_there_is_no_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._distributed_c10d, "_dump_nccl_trace", raising=False)

    assert list(cuda.last_completed()) == []


# ---- graphs ------------------------------------------------------------------------------------------------------
class Graph:
    """What is used of ``torch.cuda.CUDAGraph``."""

    def __init__(self) -> None:
        self.refused = False

    def capture_begin(self) -> None:
        if self.refused:
            raise RuntimeError("cannot capture")

    def capture_end(self) -> None:
        if self.refused:
            raise RuntimeError("capture was invalidated")

    def replay(self) -> None:
        """Run what was captured."""


@pytest.fixture
def graphs(recorded: Recording) -> Iterator[Recording]:
    """Record a process whose graphs are pretended."""
    module: Any = SimpleNamespace(CUDAGraph=Graph)
    undo = cuda._watch_graphs(recorded.recorder, module)
    yield recorded
    undo()


def test_calls_of_a_captured_graph_are_marked_and_its_replays_name_them(graphs: Recording) -> None:
    graph = Graph()
    dist.barrier()
    graph.capture_begin()
    dist.barrier()
    dist.barrier()
    graph.capture_end()
    dist.barrier()

    graph.replay()
    graph.replay()

    assert [each.call.captured for each in graphs.log.issued()] == [False, True, True, False]
    assert [each.calls for each in graphs.log.of(events.Replay)] == [[2, 3], [2, 3]]


def test_replay_of_a_graph_without_calls_names_none(graphs: Recording) -> None:
    graph = Graph()
    graph.capture_begin()
    graph.capture_end()

    graph.replay()

    assert [each.calls for each in graphs.log.of(events.Replay)] == [[]]


@pytest.mark.parametrize("moment", ["capture_begin", "capture_end"])
def test_capture_that_fails_is_over(moment: str, graphs: Recording) -> None:
    graph = Graph()
    if moment == "capture_end":
        graph.capture_begin()
    graph.refused = True

    with pytest.raises(RuntimeError, match="captur"):
        getattr(graph, moment)()

    dist.barrier()
    assert not graphs.the_call().call.captured


def test_real_device_is_left_alone_where_there_is_none(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        made.recorder.tend_device()

        device: Any = torch.cuda
        assert not device.is_initialized()
        assert made.log.faults("exception") == []
