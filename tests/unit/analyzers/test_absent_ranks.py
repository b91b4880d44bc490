"""Ranks that others wait for: who never came, who came too late, and who only waits himself."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.run import load
from tests.logs import WORLD, Logs
from tests.stuck import CLOSED, SAVE, STEP, fail, trained, verdict, wait_in

ABORT = 'Fatal Python error: Aborted\n\nCurrent thread 0x01 (most recent call first):\n  File "{}", line {} in {}\n'


def test_a_rank_that_never_joined_is_missing(tmp_path: Path) -> None:
    logs = Logs(world_size=3, default_group=False)
    for rank in logs.only(0, 1):
        number = rank.begin_phase("init_process_group", STEP)
        rank.sleep(7.0).end_phase("init_process_group", number, failed=True)
        rank.fault("torch.distributed.DistStoreError", "Timed out after 7 seconds waiting for clients. 2/3 joined")
        rank.exit(1)

    found = verdict(logs, tmp_path, 2)

    assert (found.name, found.culprits, found.victims) == ("rank-missing", (2,), (0, 1))
    assert "never entered init_process_group" in found.summary


def test_the_end_of_a_chain_of_waits_is_missing(tmp_path: Path) -> None:
    logs = Logs(world_size=4)
    for rank in logs:
        rank.group("tp", [0, 1]).group("dp", [1, 3])
        rank.all_reduce(STEP)
    wait_in(logs[0], logs[0].all_reduce(STEP, group="tp", pending=True))
    wait_in(logs[1], logs[1].all_reduce(STEP, group="dp", pending=True))
    wait_in(logs[2], logs[2].barrier(SAVE, pending=True), SAVE)
    logs[3].data_loading("data.py:5 read")

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause) == ("rank-missing", (3,), "data-loading")
    assert found.victims == (0, 1, 2)
    assert found.site == "data.py:5"


def test_a_call_left_in_flight_is_no_wait(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        rank.group("other", [0, 1, 2])
    logs[0].all_gather(SAVE, group="other", pending=True)
    logs[0].data_loading("data.py:5 read")
    for rank in logs.but(0):
        wait_in(rank, rank.all_reduce(STEP, pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause) == ("rank-missing", (0,), "data-loading")


def test_a_receive_from_anybody_blames_nobody(tmp_path: Path) -> None:
    logs = trained(3)
    wait_in(logs[0], logs[0].call("recv_any_source", SAVE, p2p=True, pending=True), SAVE)
    for rank in logs.but(0):
        wait_in(rank, rank.all_reduce(STEP, pending=True))

    assert verdict(logs, tmp_path).culprits in ((), (0,))


def test_ranks_killed_while_they_hang_are_victims(tmp_path: Path) -> None:
    """A launcher kills one after the other; the last ones still see connections break."""
    logs = trained(3)
    logs[2].data_loading("data.py:5 read", seconds=20)
    wait_in(logs[0], logs[0].all_reduce(STEP, pending=True), seconds=20)
    last = logs[1].all_reduce(STEP, pending=True)
    wait_in(logs[1], last, seconds=20)
    fail(logs[1], last, CLOSED, seconds=0.1)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.victims) == ("rank-missing", (2,), (0, 1))


def test_a_watchdog_that_aborts_the_waiting_ranks_does_not_make_them_culprits(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.but(1):
        wait_in(rank, rank.all_reduce(STEP, pending=True), seconds=600)
    logs[1].data_loading("data.py:5 read", seconds=700)
    directory = logs.write(tmp_path)
    for number in (0, 2):
        (directory / f"rank{number:05d}.crash.txt").write_text(ABORT.format("train.py", 20, "step"))

    found = diagnose(load(directory)).verdict

    assert (found.name, found.culprits) == ("rank-missing", (1,))


def test_a_rank_that_comes_after_the_others_gave_up_is_late(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.but(2):
        fail(rank, rank.all_reduce(STEP, pending=True))
    logs[2].sleep(9.0)
    fail(logs[2], logs[2].all_reduce(STEP, pending=True), CLOSED, seconds=0.01)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.victims) == ("late-rank", (2,), (0, 1))
    assert "3.0 s too late" in found.summary


def test_a_sender_that_comes_after_its_receiver_gave_up_is_late(tmp_path: Path) -> None:
    logs = trained(3)
    fail(logs[2], logs[2].recv(1, STEP, pending=True))
    logs[1].sleep(9.0)
    fail(logs[1], logs[1].send(2, STEP, pending=True), CLOSED, seconds=0.01)
    logs[0].exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.victims) == ("late-rank", (1,), (2,))
    assert "3.0 s too late" in found.summary


def test_a_sender_that_was_held_up_itself_is_not_named_for_being_late(tmp_path: Path) -> None:
    logs = trained(3)
    fail(logs[2], logs[2].recv(1, STEP, pending=True))
    logs[1].sleep(3.0).recv(0, STEP, seconds=6.0)
    logs[0].sleep(9.0).send(1, STEP, seconds=0.0)
    logs[0].exit()
    fail(logs[1], logs[1].send(2, STEP, pending=True), CLOSED, seconds=0.01)

    assert verdict(logs, tmp_path).culprits != (1,)


def with_timeout(seconds: float) -> Logs:
    logs = Logs(world_size=4, default_group=False)
    for rank in logs:
        rank.group(WORLD, range(4), timeout_seconds=seconds)
        rank.all_reduce(STEP)
    return logs


@pytest.mark.parametrize("later_seconds", [4.7, 5.2])
def test_a_rank_that_comes_while_the_others_are_giving_up_is_late(tmp_path: Path, later_seconds: float) -> None:
    logs = with_timeout(5.0)
    for rank in logs.but(3):
        fail(rank, rank.all_gather(STEP, pending=True), seconds=5.4)
    logs[3].sleep(later_seconds)
    fail(logs[3], logs[3].all_gather(STEP, pending=True), CLOSED, seconds=0.9)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.victims) == ("late-rank", (3,), (0, 1, 2))
    assert f"came {later_seconds:.1f} s after the first" in found.summary


def test_ranks_that_all_come_long_before_the_timeout_are_not_late(tmp_path: Path) -> None:
    logs = with_timeout(5.0)
    for rank in logs:
        rank.sleep(0.5 * rank.rank)
        fail(rank, rank.all_gather(STEP, pending=True), seconds=5.1)

    assert verdict(logs, tmp_path).name == "transport-stuck"


def test_a_rank_that_had_just_come_when_a_connection_broke_is_not_late(tmp_path: Path) -> None:
    logs = with_timeout(60.0)
    for rank in logs.but(3):
        fail(rank, rank.all_gather(STEP, pending=True), CLOSED, seconds=5.4)
    logs[3].sleep(5.2)
    fail(logs[3], logs[3].all_gather(STEP, pending=True), CLOSED, seconds=0.9)

    assert verdict(logs, tmp_path).name != "late-rank"


def test_waiting_for_a_majority_that_ended_well_is_the_waiters_fault(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs.but(1):
        rank.exit()
    logs[1].sleep(1.0)
    fail(logs[1], logs[1].all_reduce(SAVE, pending=True), CLOSED, seconds=0.01)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("sequence-divergence", (1,))
    assert found.site == "train.py:30"
