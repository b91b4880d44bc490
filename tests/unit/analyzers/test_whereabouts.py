"""Where a rank is said to be while others wait for it."""

from pathlib import Path

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import SECOND_NS, Logs, RankLog

STEP = ("train.py:9 main", "train.py:20 step")
FILTER = ("train.py:9 main", "train.py:50 filter")
FROZEN = """Timeout (0:00:10)!
Thread 0x01 (most recent call first):
  File "/opt/lib/python3.11/site-packages/torch/serialization.py", line 784 in __init__
  File "/job/train.py", line 60 in save
  File "/job/train.py", line 9 in main
"""


def two_wait() -> Logs:
    """Three ranks, of which rank 2 does not come to the second call."""
    logs = Logs(world_size=3)
    for rank in logs:
        rank.all_reduce(STEP)
    return logs


def pulse_on(rank: RankLog, site: tuple[str, ...], share: float, waiting: tuple[int, ...] = ()) -> None:
    """Thirty seconds of pulses of a rank that uses some share of a processor."""
    for second in range(30):
        rank.sleep(1.0).pulse(site, waiting=waiting)
        pulse = rank.records[-1]
        assert isinstance(pulse, events.Pulse)
        pulse.cpu_ns = round(second * share * SECOND_NS)


def verdict(logs: Logs, directory: Path) -> Verdict:
    return diagnose(logs.load(directory)).verdict


def test_on_a_crowded_host_a_rank_that_uses_many_times_what_the_waiting_ones_use_is_running(tmp_path: Path) -> None:
    logs = two_wait()
    for rank in logs.only(0, 1):
        call = rank.all_reduce(STEP, pending=True)
        pulse_on(rank, STEP, 0.004, waiting=(call,))
    pulse_on(logs[2], FILTER, 0.05)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause) == ("rank-missing", (2,), "running")


def test_a_rank_that_uses_no_more_than_those_that_wait_is_not_called_running(tmp_path: Path) -> None:
    logs = two_wait()
    for rank in logs.only(0, 1):
        call = rank.all_reduce(STEP, pending=True)
        pulse_on(rank, STEP, 0.02, waiting=(call,))
    pulse_on(logs[2], FILTER, 0.03)

    found = verdict(logs, tmp_path)

    assert (found.name, found.cause) == ("rank-missing", "unknown")


def test_a_rank_that_froze_in_a_native_write_is_at_its_checkpoint(tmp_path: Path) -> None:
    logs = two_wait()
    for rank in logs.only(0, 1):
        call = rank.all_reduce(STEP, pending=True)
        rank.pulses(STEP, seconds=30, waiting=[call])
    (tmp_path / "rank00002.crash.txt").write_text(FROZEN)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause) == ("rank-missing", (2,), "checkpoint")
    assert found.site == "/job/train.py:60"


def test_a_rank_whose_own_handler_of_sigterm_left_was_told_to_stop(tmp_path: Path) -> None:
    logs = two_wait()
    logs[1].exit()
    for rank in logs.only(0, 2):
        rank.pulses(STEP, seconds=30, waiting=(rank.all_reduce(STEP, pending=True),))
    (tmp_path / "rank00001.crash.txt").write_text('Stack (most recent call first):\n  File "/job/train.py", line 9\n')

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause) == ("rank-missing", (1,), "exited")
    assert "It had been told to stop with SIGTERM and had already ended" in found.summary
    assert "scheduler" in found.next_steps[0]


def test_a_rank_that_left_its_loop_after_a_sigterm_that_it_handled_is_told_with_it(tmp_path: Path) -> None:
    logs = two_wait()
    logs[1].barrier("train.py:30 main", pending=True)
    logs[1].exit()
    for rank in logs.only(0, 2):
        rank.pulses(STEP, seconds=30, waiting=(rank.all_reduce(STEP, pending=True),))
    (tmp_path / "rank00001.crash.txt").write_text('Stack (most recent call first):\n  File "/job/train.py", line 9\n')

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("sequence-divergence", (1,))
    assert any("rank 1 had been told to stop with SIGTERM" in each for each in found.evidence)


@pytest.mark.parametrize(
    ("holder", "said"),
    [
        ("debugger", "It stood in a debugger for"),
        ("process", "It waited for a process that it had started for"),
        ("thread", "It waited for a thread of its own for"),
        ("network", "It waited for the network for"),
        ("something new", "It stood still in other code for"),
    ],
)
def test_what_a_rank_waits_for_is_said(tmp_path: Path, holder: str, said: str) -> None:
    logs = two_wait()
    for rank in logs.only(0, 1):
        rank.pulses(STEP, seconds=30, waiting=(rank.all_reduce(STEP, pending=True),))
    logs[2].sleep(30).pulse(FILTER, held_by=holder)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("rank-missing", (2,))
    assert found.cause == ("unknown" if holder == "something new" else holder)
    assert said in found.summary


def test_a_rank_that_destroyed_its_groups_left_there_whatever_it_did_next(tmp_path: Path) -> None:
    logs = two_wait()
    gone = logs[2].sleep(1.0)
    gone.end_phase("destroy_process_group", gone.begin_phase("destroy_process_group", FILTER))
    for rank in logs.only(0, 1):
        rank.done(rank.all_reduce(STEP, pending=True), seconds=1.1, error="RuntimeError: Connection closed by peer")
    gone.pulses(("train.py:9 main", "report.py:3 write"), seconds=9.0).exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause) == ("rank-missing", (2,), "exited")
    assert found.site == "train.py:50"
    assert "It had destroyed its process groups, 100 ms before (train.py:50)" in found.summary


def test_a_rank_that_destroyed_one_group_of_several_is_where_it_is(tmp_path: Path) -> None:
    logs = two_wait()
    away = logs[2].sleep(1.0)
    away.end_phase("destroy_process_group", away.begin_phase("destroy_process_group", FILTER, ranks=[]))
    for rank in logs.only(0, 1):
        wait = rank.all_reduce(STEP, pending=True)
        rank.pulses(STEP, seconds=30.0, waiting=[wait])
    away.data_loading("data.py:5 load")

    found = verdict(logs, tmp_path)

    assert (found.culprits, found.cause, found.site) == ((2,), "data-loading", "data.py:5")
