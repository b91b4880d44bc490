"""Where each rank was last."""

from pathlib import Path

from distdiag import events
from distdiag.analyzers.summary.positions import positions
from tests.logs import Logs


def stuck(tmp_path: Path) -> Logs:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.at(0).in_phase("backward").all_reduce("train.py:10 step")
        rank.end_step()
    return logs


def test_a_rank_in_a_call_is_where_it_issued_it(tmp_path: Path) -> None:
    logs = stuck(tmp_path)
    logs[0].at(1).all_reduce(("train.py:3 main", "train.py:11 step"), pending=True)
    logs[0].at(31).pulse("train.py:3 main", waiting=[2])

    waiting, _ = positions(logs.load(tmp_path))

    assert (waiting.doing, waiting.where) == ("all_reduce 2 of group default_pg", "train.py:11 step")
    assert (waiting.step, waiting.phase, waiting.since_seconds) == (1, "backward", 30.0)
    assert waiting.last == "all_reduce 1, train.py:10"


def test_a_rank_that_left_an_open_call_behind_is_where_its_pulse_says(tmp_path: Path) -> None:
    logs = stuck(tmp_path)
    logs[0].at(1).all_reduce("train.py:11 step", pending=True)
    logs[0].at(31).pulse("train.py:20 evaluate")

    left, _ = positions(logs.load(tmp_path))

    assert (left.doing, left.where) == ("running", "train.py:20 evaluate")


def test_a_wait_that_is_not_seen_is_a_wait_if_the_thread_stays_there(tmp_path: Path) -> None:
    logs = stuck(tmp_path)
    logs[0].at(1).all_reduce("train.py:11 step", pending=True)
    logs[0].at(31).pulse("train.py:11 step")

    waiting, _ = positions(logs.load(tmp_path))

    assert waiting.doing == "all_reduce 2 of group default_pg"


def test_a_rank_in_its_data_loader_says_so(tmp_path: Path) -> None:
    logs = stuck(tmp_path)
    logs[1].at(1).data_loading("data.py:5 load", seconds=20)

    _, loading = positions(logs.load(tmp_path))

    assert (loading.doing, loading.phase, loading.where) == ("data loading", "data", "data.py:5 load")
    assert loading.since_seconds == 20.0


def test_a_rank_in_a_phase_of_the_user_is_named_after_it(tmp_path: Path) -> None:
    logs = stuck(tmp_path)
    logs[1].at(1).begin_phase("tokenize", "train.py:30 prepare")
    logs[1].at(5).pulse("train.py:31 prepare")

    _, busy = positions(logs.load(tmp_path))

    assert (busy.doing, busy.phase, busy.where) == ("in tokenize", "tokenize", "train.py:31 prepare")


def test_a_phase_that_ended_is_not_where_a_rank_is(tmp_path: Path) -> None:
    logs = stuck(tmp_path)
    logs[1].end_phase("tokenize", logs[1].begin_phase("tokenize"))

    _, running = positions(logs.load(tmp_path))

    assert running.doing == "running"


def test_a_rank_that_ended_says_how(tmp_path: Path) -> None:
    logs = Logs(world_size=4)
    logs[0].all_reduce()
    logs[0].exit()
    logs[1].exit(3)
    logs[2].fault("builtins.ValueError", "bad", ("train.py:1 main", "train.py:40 check")).exit(1)
    logs[3].all_reduce("train.py:7 f", error="RuntimeError: timed out")
    logs[3].fault("builtins.RuntimeError", "timed out", "train.py:7 f").exit(1)

    found = positions(logs.load(tmp_path))

    assert [each.doing for each in found] == [
        "exited",
        "exited with code 3",
        "raised ValueError",
        "all_reduce 1 of group default_pg failed (RuntimeError)",
    ]
    assert found[2].where == "train.py:40 check"


def test_a_group_is_called_what_the_job_called_it(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.group("7", (0, 1), description="mesh_dp").all_reduce(group="7", pending=True)

    first, _ = positions(logs.load(tmp_path))

    assert first.doing == "all_reduce 1 of group mesh_dp"


def test_a_send_names_its_peer(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    logs[0].send(1, pending=True)

    sender, _ = positions(logs.load(tmp_path))

    assert sender.doing == "send 1 with rank 1 of group default_pg"


def test_a_rank_without_any_record_but_its_header_has_a_position(tmp_path: Path) -> None:
    logs = Logs(world_size=1, default_group=False)

    (lost,) = positions(logs.load(tmp_path))

    assert (lost.step, lost.where, lost.last, lost.since_seconds) == (None, None, None, None)


def test_a_frame_of_the_main_thread_counts_when_nothing_was_ever_issued(tmp_path: Path) -> None:
    logs = Logs(world_size=1, default_group=False)
    logs[0].add(events.Pulse(time_ns=logs[0].now_ns, step=0, activity="compile", path=logs[0].path("train.py:2 main")))

    (compiling,) = positions(logs.load(tmp_path))

    assert (compiling.doing, compiling.where) == ("compile", "train.py:2 main")
