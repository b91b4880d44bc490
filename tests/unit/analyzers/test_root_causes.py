"""Verdicts on logs made by hand: what real ranks on one machine cannot show, and what must not be mistaken."""

from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Confidence, Verdict
from distdiag.run import load
from tests.logs import WORLD, Logs, RankLog

STEP = ("train.py:9 main", "train.py:20 step")
SAVE = ("train.py:9 main", "train.py:30 save")
LOG = ("train.py:9 main", "train.py:40 log")
TIMED_OUT = "RuntimeError: Timed out waiting 6000ms for recv operation to complete"
CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:1"
ABORT = 'Fatal Python error: Aborted\n\nCurrent thread 0x01 (most recent call first):\n  File "{}", line {} in {}\n'


def verdict(logs: Logs, directory: Path, *without: int) -> Verdict:
    return diagnose(logs.load(directory, without=without)).verdict


def trained(world_size: int, steps: int = 3) -> Logs:
    logs = Logs(world_size=world_size)
    for rank in logs:
        for _ in range(steps):
            train(rank)
    return logs


def train(rank: RankLog) -> None:
    rank.forwards = rank.backwards = 1
    rank.all_reduce(STEP)
    rank.end_step()


def wait_in(rank: RankLog, call: int, site: tuple[str, ...] = STEP, seconds: float = 30.0) -> None:
    rank.pulses(site, seconds=seconds, waiting=[call])


def fail(rank: RankLog, call: int, error: str = TIMED_OUT, seconds: float = 6.0) -> None:
    """A call that gives up, and the exception that ends the process."""
    rank.done(call, seconds=seconds, error=error)
    kind, _, message = error.partition(": ")
    rank.fault(kind, message, STEP).exit(1)


# ---- healthy --------------------------------------------------------------------------------------------------------
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


# ---- nobody's fault, or nobody knows --------------------------------------------------------------------------------
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


# ---- somebody does not come -----------------------------------------------------------------------------------------
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


def test_two_ranks_stuck_for_the_same_reason_are_named_together(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs.but(1, 2):
        fail(rank, rank.all_reduce(STEP, pending=True))
    for rank in logs.only(1, 2):
        rank.data_loading("data.py:5 read")

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("rank-missing", (1, 2))


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


def test_calls_dropped_from_a_log_are_not_missing(tmp_path: Path) -> None:
    logs = trained(3, steps=6)
    for rank in logs:
        wait_in(rank, rank.all_reduce(STEP, pending=True))
    logs[1].records = [r for r in logs[1].records if getattr(r, "seq", 99) > 3]

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("transport-stuck", ())


# ---- deaths ---------------------------------------------------------------------------------------------------------
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


def test_an_exception_after_the_others_had_given_up_is_not_the_root(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.but(2):
        fail(rank, rank.all_reduce(STEP, pending=True))
    logs[2].data_loading("data.py:5 read", seconds=40).fault("OSError", "stale file handle", "data.py:5 read").exit(1)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.cause) == ("rank-missing", (2,), "data-loading")


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


# ---- calls that differ ----------------------------------------------------------------------------------------------
def gradients(rank: RankLog, shapes: tuple[int, ...]) -> None:
    rank.forwards = rank.backwards = 1
    for shape in shapes:
        rank.all_reduce(STEP, shape=(shape,))
    rank.end_step()


def test_a_gradient_left_out_is_no_shape_mismatch(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        gradients(rank, (3, 5, 7))
        gradients(rank, (3, 5, 7))
        rank.forwards = rank.backwards = 1
        rank.all_reduce(STEP, shape=(3,))
        fail(rank, rank.all_reduce(STEP, shape=(7 if rank.rank == 2 else 5,), pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("sequence-divergence", (2,))
    assert "left out" in found.summary


def test_a_length_that_others_had_in_another_step_is_a_shape_mismatch(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for length in (4, 8, 16, 8):
            gradients(rank, (length,))
        rank.forwards = rank.backwards = 1
        fail(rank, rank.all_reduce(STEP, shape=(4 if rank.rank == 1 else 16,), pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq, found.step) == ("shape-mismatch", (1,), 5, 4)


def test_sizes_that_differ_between_the_arms_of_a_branch_are_a_shape_mismatch(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        site = SAVE if rank.rank == 0 else STEP
        for _ in range(3):
            rank.all_reduce(site)
        fail(rank, rank.all_reduce(site, shape=(5 if rank.rank == 0 else 4,), pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq) == ("shape-mismatch", (0,), 4)


def test_a_module_that_one_rank_did_not_run_is_named(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for name in ("root", "vision", "layers.0", "layers.1"):
            rank.all_gather(STEP, module=name)
        rank.end_step()
        rank.all_gather(STEP, module="root")
        if rank.rank != 1:
            rank.all_gather(STEP, module="vision")
        rank.all_gather(STEP, module="layers.0")
        fail(rank, rank.all_gather(STEP, module="layers.1", pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq) == ("sequence-divergence", (1,), 6)
    assert "module vision" in found.summary


def test_two_ranks_are_shown_and_not_judged(tmp_path: Path) -> None:
    logs = trained(2)
    logs[0].all_reduce(LOG)
    for rank in logs:
        train(rank)
        train(rank)
        fail(rank, rank.barrier(SAVE, pending=True) if rank.rank else rank.all_reduce(STEP, pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq) == ("sequence-divergence", (), 4)
    assert found.sites[0] == "train.py:40"
    assert found.confidence is Confidence.MEDIUM


def test_a_tie_of_two_halves_blames_nobody(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs:
        fail(rank, rank.barrier(SAVE, pending=True) if rank.rank < 2 else rank.all_gather(LOG, pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("sequence-divergence", ())


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


@pytest.mark.parametrize(("sent", "culprits"), [([1, 1, 2], None), ([1, 2, 1], (0,))])
def test_splits_are_compared_pair_by_pair(tmp_path: Path, sent: list[int], culprits: tuple[int, ...] | None) -> None:
    logs = Logs(world_size=3)
    sends = {0: sent, 1: [2, 1, 1], 2: [1, 2, 1]}
    expects = {0: [1, 2, 1], 1: [1, 1, 2], 2: [2, 1, 1]}
    for rank in logs:
        rank.call(
            "all_to_all_single",
            STEP,
            output_shapes=[[4]],
            input_splits=sends[rank.rank],
            output_splits=expects[rank.rank],
        )
        rank.exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == (("healthy", ()) if culprits is None else ("split-mismatch", culprits))


@pytest.mark.parametrize(("odd", "usual", "culprits"), [(3, 2, (3,)), (1, 2, (1,)), (3, None, ())])
def test_of_one_pair_that_does_not_fit_the_rank_unlike_all_others_is_named(
    tmp_path: Path, odd: int, usual: int | None, culprits: tuple[int, ...]
) -> None:
    """Rank 3 sends less to rank 1 than it should, or rank 1 expects more; without a rule nobody can say."""
    logs = Logs(world_size=4)
    for rank in logs:
        sends, expects = [2, 2, 2, 2], [2, 2, 2, 2]
        if rank.rank == 3 == odd:
            sends[1] = 1
        if rank.rank == 1 == odd:
            expects[3] = 3
        if usual is None and rank.rank in (0, 2):
            sends, expects = ([2, 2, 3, 2], [2, 2, 5, 2]) if rank.rank == 0 else ([5, 2, 2, 2], [3, 2, 2, 2])
        rank.call("all_to_all_single", STEP, output_shapes=[[sum(expects)]], input_splits=sends, output_splits=expects)
        rank.exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("split-mismatch", culprits)


# ---- how a rank left ------------------------------------------------------------------------------------------------
GUARD = ("train.py:9 main", "guard.py:12 stop")


def left(rank: RankLog, code: int, **fields: Any) -> None:
    """Leave by ``sys.exit`` in the line of GUARD."""
    rank.fault("", site=GUARD, fault="exit", where="interpreter", code=code, **fields)


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


def test_a_job_that_is_interrupted_is_said_to_be(tmp_path: Path) -> None:
    logs = trained(2)
    for rank in logs:
        rank.fault("KeyboardInterrupt", site=STEP, fault="exit", where="interpreter")

    found = verdict(logs, tmp_path)

    assert found.name == "healthy"
    assert (
        found.summary == "ranks 0-1 were interrupted by the keyboard or SIGINT: 3 steps, 6 calls, all of them matched"
    )


# ---- where several stories fit --------------------------------------------------------------------------------------
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


def test_a_line_whose_calls_are_all_alike_differs_in_size(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        rank.all_reduce(STEP, shape=[12])
        if rank.rank == 2:
            rank.all_reduce(STEP, shape=[8])
        wait_in(rank, rank.all_reduce(STEP, shape=[12], pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("shape-mismatch", (2,))


def test_a_loop_that_may_have_gone_round_once_more_is_not_said_to_lack_what_follows(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(2):
            for _ in range(3):
                rank.all_reduce(STEP, shape=[4])
            if rank.calls < 6 or rank.rank != 2:
                rank.all_reduce(LOG, shape=[1])
        wait_in(rank, rank.all_reduce(STEP, shape=[4], pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("sequence-divergence", (2,))
    assert "the calls alone cannot tell" in found.summary


def test_a_call_that_never_came_twice_in_a_row_is_no_loop_and_lacks_the_one_before_it(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(2):
            rank.all_reduce(LOG, shape=[1])
            rank.all_reduce(STEP, shape=[4])
        if rank.rank == 2:
            wait_in(rank, rank.all_reduce(STEP, shape=[4], pending=True))
        else:
            rank.all_reduce(LOG, shape=[1])
            wait_in(rank, rank.all_reduce(STEP, shape=[4], pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.site) == ("sequence-divergence", (2,), "train.py:40")
    assert "rank 2 left out all_reduce of 1 float32" in found.summary


def test_steps_say_in_which_of_them_a_call_was_left_out(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for step in range(4):
            for _ in range(2 if (rank.rank, step) == (1, 1) else 3):
                rank.all_reduce(STEP)
            rank.end_step()
        wait_in(rank, rank.barrier(SAVE, pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.step) == ("sequence-divergence", (1,), 1)
    assert "left out all_reduce" in found.summary


# ---- what no backend refuses ----------------------------------------------------------------------------------------
def test_a_rank_that_reduces_in_another_way_is_found_though_nothing_fails(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs:
        rank.call("all_reduce", LOG, reduce_op="MAX" if rank.rank == 1 else "SUM")
        rank.exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq, found.site) == ("op-mismatch", (1,), 4, "train.py:40")
    assert "rank 1 asks for MAX" in found.summary
    assert "ranks 0,2 ask for SUM" in found.summary


def test_kinds_of_reductions_that_take_turns_on_all_ranks_are_healthy(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for kind in ("SUM", "MAX", "SUM"):
            rank.call("all_reduce", LOG, reduce_op=kind)
        rank.exit()

    assert verdict(logs, tmp_path).name == "healthy"


@pytest.mark.parametrize(("parts", "room", "culprit"), [((4, 4, 4), (4, 4, 5), 2), ((4, 4, 5), (4, 4, 4), 0)])
def test_a_part_of_a_scatter_that_does_not_fit_is_found_though_nothing_fails(
    parts: tuple[int, ...], room: tuple[int, ...], culprit: int, tmp_path: Path
) -> None:
    logs = trained(3)
    for rank in logs:
        outputs = [[part] for part in parts] if rank.rank == 0 else []
        rank.call("scatter", SAVE, shape=[room[rank.rank]], output_shapes=outputs, root=0)
        rank.exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq) == ("shape-mismatch", (culprit,), 4)
    assert all(f" {size}" in found.summary for size in (parts[2], room[2]))


def test_sizes_that_differ_on_every_rank_are_all_told(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs:
        fail(rank, rank.all_reduce(LOG, shape=[2, 5 + rank.rank], pending=True))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("shape-mismatch", ())
    assert "rank 0 2x5, rank 1 2x6, rank 2 2x7" in found.summary


# ---- logs that were cut ---------------------------------------------------------------------------------------------
def cut(file: Path) -> None:
    """Leave the first half of a log, as where it was copied while a disk was full."""
    written = file.read_bytes()
    file.write_bytes(written[: len(written) // 2].rpartition(b"\n")[0] + b'\n{"kind":"do')


def test_a_rank_whose_log_was_cut_is_not_accused_of_what_is_not_in_it(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs.only(0, 1, 3):
        fail(rank, rank.all_reduce(STEP, pending=True))
    logs[2].pulses("lock.py:3 acquire", seconds=30)
    cut(logs.write(tmp_path) / "rank00001.jsonl")

    found = diagnose(load(tmp_path)).verdict

    assert (found.name, found.culprits, found.confidence) == ("rank-missing", (2,), Confidence.MEDIUM)
    assert "the log of rank 1 is cut within a record" in found.evidence
    assert found.evidence[-1].startswith("3 of 4 logs whole")


def test_that_the_log_of_the_one_that_is_waited_for_was_cut_is_said(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.only(0, 1):
        fail(rank, rank.all_reduce(STEP, pending=True))
    logs[2].pulses("lock.py:3 acquire", seconds=30)
    cut(logs.write(tmp_path) / "rank00002.jsonl")

    found = diagnose(load(tmp_path)).verdict

    assert (found.name, found.culprits) == ("insufficient-evidence", ())
    assert "of rank 2 only the beginning of its log is here" in found.summary


def test_a_rank_whose_log_was_cut_was_not_killed_with_those_that_were(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs.only(0, 1, 3):
        fail(rank, rank.all_reduce(STEP, pending=True), error=CLOSED, seconds=1.0)
    cut(logs.write(tmp_path) / "rank00001.jsonl")

    found = diagnose(load(tmp_path)).verdict

    assert (found.name, found.culprits, found.cause) == ("rank-died", (2,), "killed")
