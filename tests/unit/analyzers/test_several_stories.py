"""Runs in which several things went wrong: the root is told from what it brought about."""

from pathlib import Path

from tests.logs import Logs
from tests.stuck import CLOSED, LOG, SAVE, STEP, TIMED_OUT, fail, trained, verdict


def test_two_ranks_stuck_for_the_same_reason_are_named_together(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs.but(1, 2):
        fail(rank, rank.all_reduce(STEP, pending=True))
    for rank in logs.only(1, 2):
        rank.data_loading("data.py:5 read")

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("rank-missing", (1, 2))


def test_an_exception_after_the_others_had_given_up_is_not_the_root(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.but(2):
        fail(rank, rank.all_reduce(STEP, pending=True))
    logs[2].data_loading("data.py:5 read", seconds=40).fault("OSError", "stale file handle", "data.py:5 read").exit(1)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause) == ("rank-missing", (2,), "data-loading")


def test_a_death_outranks_call_sites_that_merely_rotate(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for number in range(10 if rank.rank else 9):
            leads = number % 3 == rank.rank
            rank.all_reduce(("train.py:9 main", f"train.py:{50 if leads else 52} share"))
    logs[0].fault("ValueError", "bad sample", "data.py:7 parse").exit(1)
    for rank in logs.but(0):
        fail(rank, rank.all_reduce(STEP, pending=True), CLOSED, seconds=0.5)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("rank-died", (0,))


def test_one_fault_in_a_small_group_is_told_from_the_waits_it_causes(tmp_path: Path) -> None:
    logs = Logs(world_size=6)
    for rank in logs:
        half = [0, 1, 2] if rank.rank < 3 else [3, 4, 5]
        rank.group("half", half, description="tp")
        rank.all_reduce(STEP)
        for _ in range(4):
            rank.all_reduce(STEP, group="half")
    logs[4].all_reduce(LOG, group="half", shape=(2,), error=TIMED_OUT, seconds=6.0)
    for rank in logs.only(3, 5):
        rank.all_gather(SAVE, group="half", error=TIMED_OUT, seconds=6.0)
    for rank in logs.only(0, 1, 2):
        rank.barrier(SAVE, error=TIMED_OUT, seconds=6.0)
    for rank in logs:
        rank.fault("RuntimeError", TIMED_OUT, STEP).exit(1)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.group) == ("sequence-divergence", (4,), "tp")
    assert found.victims == (0, 1, 2, 3, 5)


def test_an_error_behind_a_failed_wait_is_found_where_it_was_raised(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.only(0, 1):
        fail(rank, rank.all_reduce(STEP, pending=True))
    call = logs[2].barrier(SAVE, pending=True, handling="ValueError")
    logs[2].done(call, seconds=6.0, error=TIMED_OUT)
    message = TIMED_OUT.partition(": ")[2]
    logs[2].fault("RuntimeError", message, SAVE, causes=["ValueError: bad batch"], origins=["data.py:7 read"]).exit(1)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.site) == ("rank-died", (2,), "data.py:7")


def test_ranks_that_are_absent_for_different_reasons_are_all_culprits(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs.only(0, 2):
        fail(rank, rank.all_reduce(STEP, pending=True), seconds=20.0)
    logs[3].pulses("lock.py:3 acquire", seconds=30)
    logs[1].data_loading("data.py:5 load").pulses("data.py:5 load", seconds=30)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause, found.site) == (
        "rank-missing",
        (1, 3),
        "data-loading",
        "data.py:5",
    )
    assert "rank 3 stood still in other code" in found.summary
    assert any("lock.py:3 on rank 3" in step for step in found.next_steps)


def test_a_dead_thread_is_told_of_a_rank_that_stands_still(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.only(0, 1):
        fail(rank, rank.all_reduce(STEP, pending=True))
    logs[2].fault("ValueError", "corrupt shard", "data.py:5 produce", where="thread", thread="Thread-1")
    logs[2].pulses("queue.py:3 take", seconds=30)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("rank-missing", (2,))
    assert "rank 2: its thread Thread-1 had died of ValueError: corrupt shard (data.py:5)" in found.evidence
