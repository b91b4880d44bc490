"""Runs in which nobody is to blame: healthy ones, and those whose logs cannot tell whose fault it was."""

from pathlib import Path

from distdiag.findings import Confidence
from tests.logs import Logs
from tests.stuck import CLOSED, LOG, SAVE, STEP, TIMED_OUT, trained, verdict, wait_in


def test_ranks_that_end_in_an_orderly_way_are_healthy(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs:
        rank.exit()

    found = verdict(logs, tmp_path)

    assert found.name == "healthy"
    assert found.summary == "ranks 0-2 ended in an orderly way: 3 steps, 9 calls, all of them matched"


def test_roles_that_stand_for_a_whole_run_are_healthy(tmp_path: Path) -> None:
    logs = Logs(world_size=4)
    for rank in logs:
        for number in range(6):
            leads = number % 4 == rank.rank
            rank.broadcast(("train.py:9 main", f"train.py:{50 if leads else 52} share"), root=number % 4)
            rank.all_reduce(SAVE if rank.rank == 0 else STEP)
        rank.exit()

    assert verdict(logs, tmp_path).name == "healthy"


def test_a_call_that_fails_and_is_tried_again_is_healthy(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.barrier(STEP, error=TIMED_OUT)
        rank.barrier(STEP)
        rank.exit()

    assert verdict(logs, tmp_path).name == "healthy"


def test_a_call_that_all_are_in_is_stuck_below_the_program(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs:
        wait_in(rank, rank.all_reduce(STEP, pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.victims) == ("transport-stuck", (), (0, 1, 2, 3))
    assert (found.op, found.seq) == ("all_reduce", 4)


def test_a_rank_without_a_log_is_not_accused(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs:
        wait_in(rank, rank.all_reduce(STEP, pending=True))

    found = verdict(logs, tmp_path, 3)

    assert (found.name, found.culprits, found.confidence) == ("insufficient-evidence", (), Confidence.LOW)
    assert "rank 3 left no log" in " ".join(found.evidence)


def test_logs_that_stop_all_at_once_do_not_tell(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs:
        rank.all_reduce(STEP, pending=True)

    found = verdict(logs, tmp_path)

    assert found.name == "insufficient-evidence"
    assert "killed from outside" in found.summary


def test_a_group_that_all_are_making_is_stuck(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        rank.new_group([0, 1], STEP, inside=True)
        rank.pulses(STEP, seconds=30)

    assert verdict(logs, tmp_path).name == "group-creation-stuck"


def test_calls_dropped_from_a_log_are_not_missing(tmp_path: Path) -> None:
    logs = trained(3, steps=6)
    for rank in logs:
        wait_in(rank, rank.all_reduce(STEP, pending=True))
    logs[1].records = [r for r in logs[1].records if getattr(r, "seq", 99) > 3]

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("transport-stuck", ())


def test_a_job_that_is_interrupted_is_said_to_be(tmp_path: Path) -> None:
    logs = trained(2)
    for rank in logs:
        rank.fault("KeyboardInterrupt", site=STEP, fault="exit", where="interpreter")

    found = verdict(logs, tmp_path)

    assert found.name == "healthy"
    assert (
        found.summary == "ranks 0-1 were interrupted by the keyboard or SIGINT: 3 steps, 6 calls, all of them matched"
    )


def interrupt(logs: Logs, first: int, after_seconds: float) -> None:
    """One rank is interrupted while the others wait for it, and they fail when it is gone."""
    for rank in logs.but(first):
        call = rank.all_reduce(STEP, pending=True)
        rank.pulses(STEP, seconds=after_seconds, waiting=[call]).done(call, seconds=0.01, error=CLOSED)
    logs[first].pulses(SAVE, seconds=after_seconds)
    for rank in logs:
        rank.fault("KeyboardInterrupt", site=STEP, fault="exit", where="interpreter")


def test_ranks_that_are_interrupted_at_work_are_not_missed_by_those_that_end_after_them(tmp_path: Path) -> None:
    logs = trained(3)
    interrupt(logs, 1, 0.1)

    found = verdict(logs, tmp_path)

    assert found.name == "healthy"
    assert found.summary.startswith("ranks 0-2 were interrupted by the keyboard or SIGINT")


def test_ranks_whose_handlers_of_sigterm_end_them_at_work_are_not_missed_either(tmp_path: Path) -> None:
    logs = trained(3)
    logs[1].pulses(SAVE, seconds=0.1).exit()
    for rank in logs.but(1):
        call = rank.all_reduce(STEP, pending=True)
        rank.pulses(STEP, seconds=0.1, waiting=[call]).done(call, seconds=0.01, error=CLOSED).exit()
    for rank in logs:
        (tmp_path / f"rank{rank.rank:05}.crash.txt").write_text("Stack (most recent call first):\n")

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("healthy", ())


def test_who_had_been_waited_for_when_all_were_interrupted_is_where_it_was(tmp_path: Path) -> None:
    logs = trained(3)
    interrupt(logs, 1, 30.0)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.site) == ("rank-missing", (1,), "train.py:30")
    assert "It stood still in other code for 30.0 s (train.py:30); ranks 0,2 wait for it" in found.summary


def test_kinds_of_reductions_that_take_turns_on_all_ranks_are_healthy(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for kind in ("SUM", "MAX", "SUM"):
            rank.call("all_reduce", LOG, reduce_op=kind)
        rank.exit()

    assert verdict(logs, tmp_path).name == "healthy"
