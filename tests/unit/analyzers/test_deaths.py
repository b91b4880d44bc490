"""Ranks that died or left: how, where, and who is only torn down by it."""

from pathlib import Path
from typing import Any

from distdiag.analyzers import diagnose
from distdiag.run import load
from tests.logs import RankLog
from tests.stuck import CLOSED, SAVE, STEP, TIMED_OUT, fail, trained, verdict, wait_in

GUARD = ("train.py:9 main", "guard.py:12 stop")


def left(rank: RankLog, code: int, **fields: Any) -> None:
    """Leave by ``sys.exit`` in the line of GUARD."""
    rank.fault("", site=GUARD, fault="exit", where="interpreter", code=code, **fields)


def test_survivors_torn_down_by_the_launcher_are_victims(tmp_path: Path) -> None:
    logs = trained(3)
    logs[1].fault("ValueError", "bad sample", "data.py:7 parse").exit(1)
    for rank in logs.but(1):
        wait_in(rank, rank.all_reduce(STEP, pending=True), seconds=1)
    directory = logs.write(tmp_path)
    for number in (0, 2):
        (directory / f"rank{number:05d}.crash.txt").write_text("Stack (most recent call first):\n")

    found = diagnose(load(directory)).verdict

    assert (found.name, found.culprits, found.cause) == ("rank-died", (1,), "exception")
    assert found.site == "data.py:7"


def test_an_error_of_the_users_own_connections_is_the_ranks_own(tmp_path: Path) -> None:
    logs = trained(3)
    logs[0].fault("ConnectionResetError", "[Errno 104] Connection reset by peer", "bucket.py:7 fetch").exit(1)
    for rank in logs.but(0):
        fail(rank, rank.all_reduce(STEP, pending=True), CLOSED, seconds=0.5)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("rank-died", (0,))


def test_calls_made_while_cleaning_up_are_no_divergence(tmp_path: Path) -> None:
    logs = trained(3)
    logs[0].fault("ValueError", "bad sample", "data.py:7 parse").exit(1)
    for rank in logs.but(0):
        last = rank.all_reduce(STEP, pending=True)
        rank.done(last, seconds=0.2, error=CLOSED)
        rank.barrier(SAVE, error=CLOSED, handling="RuntimeError")
        rank.fault("RuntimeError", CLOSED, SAVE).exit(1)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause) == ("rank-died", (0,), "exception")


def test_several_ranks_with_one_exception_are_named_together(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs.only(1, 3):
        rank.fault("RuntimeError", f"batch of rank {rank.rank} is empty", "data.py:7 parse").exit(1)
    for rank in logs.only(0, 2):
        fail(rank, rank.all_reduce(STEP, pending=True), CLOSED, seconds=0.5)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.victims) == ("rank-died", (1, 3), (0, 2))


def test_a_rank_that_leaves_with_a_code_while_others_wait_died(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.only(0, 1):
        fail(rank, rank.all_reduce(STEP, pending=True))
    left(logs[2], 3)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause, found.site) == ("rank-died", (2,), "exited", "guard.py:12")
    assert "rank 2 left by sys.exit(3)" in found.summary


def test_a_rank_that_leaves_because_of_its_own_error_died_where_that_was_raised(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.only(0, 1):
        fail(rank, rank.all_reduce(STEP, pending=True))
    left(logs[2], 1, causes=["ValueError: bad batch"], origins=["data.py:7 read"])

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause, found.site) == ("rank-died", (2,), "exception", "data.py:7")
    assert "rank 2 raised ValueError: bad batch" in found.summary


def test_ranks_that_leave_because_a_wait_gave_up_are_victims(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.only(0, 1):
        rank.done(rank.all_reduce(STEP, pending=True), seconds=6.0, error=TIMED_OUT)
        left(rank, 1, causes=[TIMED_OUT], origins=["train.py:20 step"])
    logs[2].pulses("data.py:7 read", seconds=30)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("rank-missing", (2,))


def test_a_rank_that_left_too_early_is_found_at_the_line_that_it_left_by(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.only(0, 1):
        fail(rank, rank.all_reduce(STEP, pending=True))
    left(logs[2], 0)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause, found.site) == ("rank-missing", (2,), "exited", "guard.py:12")
    assert "It had left by sys.exit(0), 6.0 s before (guard.py:12)" in found.summary
