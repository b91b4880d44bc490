"""How the end of a call becomes known, and that nothing of the call is kept until then or after."""

import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives
from torch._subclasses.fake_tensor import FakeTensorMode

from distdiag import events
from distdiag.hooks import completion
from distdiag.recorder import MAX_FLIGHTS
from tests.ranks import Ended, launch
from tests.recordings import Recording, floats, lonely_world, pretended_world, recording
from tests.waiting import until

dist: Any = torch.distributed
functional: Any = torch.distributed._functional_collectives

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")


def test_call_that_was_waited_for_ends_with_the_wait(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        dist.all_reduce(floats(2))

        issued = made.the_call()
        assert issued.done is not None
        assert issued.done.clock == "wait"
        assert issued.done.end_ns > issued.call.start_ns
        assert made.recorder.flights == {}


def test_wait_that_begins_later_is_told_apart(recorded: Recording) -> None:
    work = dist.irecv(floats(2), 0)
    time.sleep(0.002)
    work.wait()

    issued = recorded.the_call()
    assert issued.done is not None
    assert issued.done.wait_start_ns is not None
    assert issued.call.start_ns + 2_000_000 <= issued.done.wait_start_ns <= issued.done.end_ns


def test_call_that_nobody_waits_for_ends_by_polling(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        work = dist.all_reduce(floats(2), async_op=True)

        until(lambda: made.the_call().done)

        done = made.the_call().done
        assert done is not None
        assert done.clock == "poll"
        assert not done.failed
        assert made.recorder.flights == {}
        del work


def test_functional_collective_ends_when_its_tensor_is_waited_for(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        functional.all_reduce(floats(2), "sum", dist.group.WORLD) + 1

        done = made.the_call().done
        assert done is not None
        assert done.clock in ("wait", "poll")
        assert made.recorder.flights == {}


def test_functional_reduce_scatter_ends_only_when_it_is_waited_for(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        several = functional.reduce_scatter_tensor_coalesced([floats(2), floats(3)], "sum", [0, 0], dist.group.WORLD)
        one = functional.reduce_scatter_tensor(floats(2), "sum", 0, dist.group.WORLD)
        time.sleep(2 * completion.UNREACHABLE_AFTER_NS / 1e9)
        assert [each.done for each in made.log.issued()] == [None, None]

        functional.wait_tensor(several[1])
        functional.wait_tensor(one)

        ends = [each.done for each in made.log.issued()]
        assert [each and each.clock for each in ends] == ["wait", "wait"]
        assert all(each and each.wait_start_ns for each in ends)
        assert made.recorder.flights == {}
        functional.wait_tensor(several[0])


def test_tracing_of_a_wait_is_not_taken_for_one(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        reduced = functional.reduce_scatter_tensor(floats(2), "sum", 0, dist.group.WORLD)
        with FakeTensorMode():
            functional.wait_tensor(floats(2))
        assert made.the_call().done is None

        functional.wait_tensor(reduced)

        assert made.the_call().done is not None


def test_functional_send_ends_when_its_tensor_is_waited_for(recorded: Recording) -> None:
    sent = torch.ops._c10d_functional.isend(floats(2), 0, 0, dist.group.WORLD.group_name)
    functional.wait_tensor(sent)

    assert recorded.the_call("send").done is not None


def test_send_that_nobody_waits_for_has_no_end(recorded: Recording) -> None:
    dist.isend(floats(2), 0)
    dist.irecv(floats(2), 0)

    recorded.recorder.poll()

    assert [each.done for each in recorded.log.issued()] == [None, None]


def test_send_that_nobody_can_wait_for_any_more_is_let_go_with_its_tensor(recorded: Recording) -> None:
    dist.isend(floats(2), 0)

    until(lambda: not recorded.recorder.flights)

    assert recorded.the_call().done is None


def test_send_that_somebody_still_has_is_followed_to_its_wait(recorded: Recording) -> None:
    work = dist.isend(floats(2), 0)
    time.sleep(2 * completion.UNREACHABLE_AFTER_NS / 1e9)

    work.wait()

    assert recorded.the_call().done is not None


def test_end_is_written_once_even_where_polling_meets_a_wait(tmp_path: Path) -> None:
    class Met(dist._Work):  # type: ignore[misc]  # pybind11 classes have no types
        """A work that is polled just after somebody began to wait for it."""

        def is_completed(self) -> bool:
            return True

        def wait(self, *_timeout: Any) -> bool:
            flight.wait_start_ns = 0  # the poll looked just before the wait began
            made.recorder.poll()
            return True

    with recording(tmp_path) as made, pretended_world():
        dist.isend(floats(2), 0)
        (flight,) = made.recorder.flights.values()
        flight.signature.event.op = "all_reduce"  # sends are never polled
        work = flight.work = Met()
        made.recorder.flights.clear()
        made.recorder.flights[id(work)] = flight
        work.wait()

        assert len(made.log.of(events.Done)) == 1


def test_work_and_its_tensors_are_let_go_with_the_end(tmp_path: Path) -> None:
    gc.disable()
    try:
        with recording(tmp_path) as made, lonely_world():
            waited, polled = floats(2), floats(2)
            freed = [weakref.ref(waited), weakref.ref(polled)]
            work = dist.all_reduce(waited, async_op=True)
            work.wait()
            del work, waited
            dist.all_reduce(polled, async_op=True)
            del polled
            until(lambda: not made.recorder.flights)

            until(lambda: [each() for each in freed] == [None, None])
    finally:
        gc.enable()


def test_destroying_a_group_leaves_nothing_in_flight_and_loses_no_end(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        group = dist.new_group([0])
        works = [dist.all_reduce(floats(2), group=group, async_op=True) for _ in range(20)]
        until(lambda: all(work.is_completed() for work in works))

        dist.destroy_process_group(group)

        assert made.recorder.flights == {}
        assert all(each.done is not None for each in made.log.issued())


def test_group_that_was_destroyed_is_freed(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        dist.barrier(dist.new_group([0]))
        known = len(made.recorder.groups)
        group = dist.new_group([0])
        dist.barrier(group)
        freed = weakref.ref(group)

        dist.destroy_process_group(group)
        del group
        gc.collect()

        assert freed() is None
        assert len(made.recorder.groups) == known


def test_calls_that_never_end_do_not_pile_up(recorded: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 8
    assert limit < MAX_FLIGHTS
    monkeypatch.setattr(completion, "MAX_FLIGHTS", limit)

    for _ in range(3 * limit):
        dist.all_reduce(floats(1), async_op=True)

    until(lambda: len(recorded.recorder.flights) <= limit)
    newest = {flight.call for flight in recorded.recorder.flights.values()}
    assert max(newest) == 3 * limit


def test_thread_that_polls_is_gone_after_uninstall(tmp_path: Path) -> None:
    with recording(tmp_path):
        assert any(thread.name == "distdiag-reaper" for thread in threading.enumerate())

    assert not any(thread.name.startswith("distdiag-") for thread in threading.enumerate())


# ---- between ranks -----------------------------------------------------------------------------------------------
LATE_SECONDS = 0.3
BUSY_SECONDS = 0.25
"""What a busy machine may need to wake who waits."""

LATE_AND_LOST = f"""
import json, os, threading, time
import torch
import torch.distributed as dist
import distdiag

distdiag.install()
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(1000)
for _ in range(3):
    dist.all_reduce(tensor)
dist.barrier()
if rank == 1:
    time.sleep({LATE_SECONDS})
dist.all_reduce(tensor)  # LINE late
dist.barrier()
if rank == 1:
    time.sleep({LATE_SECONDS})
work = dist.all_reduce(tensor, async_op=True)  # LINE polled
time.sleep({3 * LATE_SECONDS} if rank == 0 else {2 * LATE_SECONDS})
work.wait()
dist.barrier()
ticks = []
threading.Thread(target=lambda: [ticks.append(time.sleep(0.01)) for _ in range(1000)], daemon=True).start()
if rank == 1:
    time.sleep({LATE_SECONDS})
before = len(ticks)
dist.monitored_barrier()  # LINE blocking
ticked = len(ticks) - before
dist.barrier()
if rank == 1:
    dist.isend(tensor, 0)  # LINE nobody waits
    os._exit(0)
works = [dist.all_reduce(tensor, async_op=True), None]  # LINE lost
try:
    dist.all_reduce(tensor)  # LINE failed
except RuntimeError as error:
    print(json.dumps({{"ticked": ticked, "error": str(error).splitlines()[0]}}), flush=True)
time.sleep(0.2)
os._exit(0)
"""


@pytest.fixture(scope="module")
def late_and_lost(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    """Run two ranks: the second comes late twice and then leaves without a word."""
    ranks = launch(LATE_AND_LOST, tmp_path_factory.mktemp("late"))
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].stderr + ranks[1].stderr
    return ranks


def the_call_at(rank: Ended, mark: str) -> Any:
    (issued,) = [each for each in rank.log.issued() if each.site.startswith(f"{rank.line(mark)} ")]
    return issued


def lateness(waiting: Any, late: Any) -> float:
    """Return by how many seconds one rank came after the other: they share a clock."""
    return float(late.call.start_ns - waiting.call.start_ns) / 1e9


def test_rank_that_waits_for_a_late_one_takes_as_long_as_it_is_late(late_and_lost: list[Ended]) -> None:
    waiting, late = (the_call_at(rank, "late") for rank in late_and_lost)

    assert waiting.seconds > lateness(waiting, late) > LATE_SECONDS / 2
    assert waiting.seconds - late.seconds == pytest.approx(lateness(waiting, late), abs=BUSY_SECONDS)


def test_other_threads_run_while_a_call_blocks(late_and_lost: list[Ended]) -> None:
    blocked, late = (the_call_at(rank, "blocking") for rank in late_and_lost)

    assert blocked.seconds > lateness(blocked, late) > LATE_SECONDS / 2
    assert blocked.done.clock == "wait"
    assert late_and_lost[0].told["ticked"] > 5


def test_polling_tells_the_end_not_the_wait(late_and_lost: list[Ended]) -> None:
    waiting, late = (the_call_at(rank, "polled") for rank in late_and_lost)

    assert waiting.done.clock == late.done.clock == "poll"
    assert waiting.seconds > lateness(waiting, late) > LATE_SECONDS / 2
    assert waiting.done.end_ns - late.call.start_ns < 2 * LATE_SECONDS * 1e9  # both wait for it only then
    assert waiting.seconds - late.seconds == pytest.approx(lateness(waiting, late), abs=BUSY_SECONDS)


def test_send_that_its_rank_does_not_wait_for_has_no_end(late_and_lost: list[Ended]) -> None:
    assert the_call_at(late_and_lost[1], "nobody waits").done is None


def test_call_whose_peer_left_has_failed(late_and_lost: list[Ended]) -> None:
    failed = the_call_at(late_and_lost[0], "failed")

    assert failed.done.failed
    assert failed.done.error.startswith("RuntimeError: ")
    assert late_and_lost[0].told["error"] in failed.done.error


def test_call_whose_peer_left_has_failed_also_where_nobody_waits(late_and_lost: list[Ended]) -> None:
    lost = the_call_at(late_and_lost[0], "lost")

    assert lost.done.clock == "poll"
    assert lost.done.failed
