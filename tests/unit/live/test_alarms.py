"""Alarms of a watched job: what is wrong is said once, of the right rank, and what is healthy is not."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from distdiag import events
from distdiag.live.alarms import Change, Kind
from distdiag.live.snapshot import snapshot_of
from distdiag.live.watch import Watch
from tests.logs import SECOND_NS, WALL_NS, Logs
from tests.pipelines import Plan, pipeline
from tests.waiting import until
from tests.watching import Watched, cleared, raised

SERIES = Path(__file__).parents[4] / "shared" / "data" / "healthy_series"
LIMIT_BYTES = 10 << 30


def test_stalled_job_is_told_once_with_the_rank_that_others_wait_for(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=5)
    for log in watched.logs.only(0, 1):
        log.all_reduce("train.py:10 step", pending=True)
    watched.logs[2].batch("train.py:8 read", pending=True)
    watched.look()

    quiet = watched.pass_by(4, waiting=(6,))
    changes = watched.pass_by(10, waiting=(6,))

    assert quiet == []
    (alarm,) = raised(changes)
    assert alarm.kind == Kind.STALL
    assert alarm.condition.ranks == (2,)
    assert alarm.condition.limit_seconds == 5.0
    assert "rank 2 is in its data loader" in alarm.condition.summary
    assert "ranks 0-1 wait" in alarm.condition.summary
    assert len(changes) == 1


TRACED = "import ctypes, os, signal; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.mark.parametrize(("how", "named"), [("stopped", (1,)), ("held by a tracer", ())])
def test_rank_that_was_stopped_within_the_call_that_all_are_in_is_named(
    tmp_path: Path, how: str, named: tuple[int, ...]
) -> None:
    """One that is traced may be a rank that stands still as all do, and has its stacks taken."""
    command = ["sleep", "60"] if named else [sys.executable, "-c", TRACED]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        if named:
            os.kill(process.pid, signal.SIGSTOP)
        until(lambda: psutil.Process(process.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))
        watched = Watched(tmp_path, world_size=3)
        header = watched.logs[1].header
        header.host, header.pid, header.wall_ns = socket.gethostname(), process.pid, time.time_ns()
        watched.train(steps=5)
        for log in watched.logs:
            log.all_reduce("train.py:10 step", pending=True)

        (alarm,) = raised(watched.pass_by(12, without=(1,), waiting=(6,)))
    finally:
        process.kill()
        process.wait()

    assert (alarm.kind, alarm.condition.ranks) == (Kind.STALL, named)
    assert f"its process is {how}" in " ".join(alarm.condition.evidence)


def test_alarm_is_cleared_when_the_job_goes_on(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=5)
    (alarm,) = raised(watched.pass_by(9))

    watched.train(steps=1)
    changes = watched.pass_by(4)

    assert [each.number for each in cleared(changes)] == [alarm.number]
    assert cleared(changes)[0].cleared_wall_ns is not None
    assert watched.watch.alarms.active == {}


def test_rank_in_a_phase_of_the_user_is_no_stall(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=5)
    watched.logs[0].begin_phase("evaluate")
    watched.logs[1].barrier(pending=True)

    assert watched.pass_by(60) == []


@pytest.mark.parametrize("activity", ["compile", "checkpoint"])
def test_compiling_and_saving_are_no_stall(tmp_path: Path, activity: str) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=5)

    assert watched.pass_by(20, activity=activity) == []


def test_ranks_that_still_import_are_no_stall(tmp_path: Path) -> None:
    watched = Watched(tmp_path)

    assert watched.pass_by(30) == []


@pytest.mark.parametrize(("cpu_share", "alarms"), [(0.05, 0), (0.005, 1)])
def test_first_steps_that_still_compute_are_no_stall(tmp_path: Path, cpu_share: float, alarms: int) -> None:
    watched = Watched(tmp_path)
    for log in watched.logs:
        log.all_reduce("train.py:10 main")
    changes = []
    for second in range(30):
        watched.seconds += 1.0
        for log in watched.logs:
            log.at(watched.seconds)
            cpu_ns = round(second * cpu_share * SECOND_NS)
            log.add(events.Pulse(time_ns=log.now_ns, step=0, calls=1, cpu_ns=cpu_ns))
        changes += watched.look()

    assert len(raised(changes)) == alarms


def test_longer_limit_that_the_log_tells_is_the_one_in_force(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=5)
    for log in watched.logs:
        log.add(events.Pulse(time_ns=log.now_ns, step=5, calls=5, stall_after_seconds=30.0))

    assert watched.pass_by(29) == []
    (alarm,) = raised(watched.pass_by(4))
    assert alarm.condition.limit_seconds == 30.0


def test_job_that_ended_is_no_stall(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=5)
    for log in watched.logs:
        log.exit()

    assert [*watched.look(), *watched.look(100.0), *watched.look(101.0)] == []
    assert watched.watch.job.ended


def left_logs(directory: Path) -> Path:
    """Logs of ranks that were killed an hour ago, in the middle of a step."""
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce("train.py:10 step")
        rank.end_step().pulse("train.py:12 main")
    written = logs.write(directory)
    for path in written.iterdir():
        os.utime(path, ns=(WALL_NS, WALL_NS))
    return written


HOUR_NS = 3600 * SECOND_NS


def test_job_that_ended_long_before_anybody_looked_is_over_and_no_stall(tmp_path: Path) -> None:
    watch = Watch(left_logs(tmp_path), explain=False)

    changes = [*watch.look(0.0, WALL_NS + HOUR_NS), *watch.look(60.0, WALL_NS + HOUR_NS + 60 * SECOND_NS)]

    snapshot = snapshot_of(watch)
    assert changes == []
    assert "ranks 0-1 wrote nothing for 61 min" in snapshot.health
    assert {row.state for row in snapshot.ranks} == {"silent"}


@pytest.mark.parametrize("clock", ["file", "host"])
def test_one_old_clock_does_not_make_a_job_old(tmp_path: Path, clock: str) -> None:
    directory = left_logs(tmp_path)
    now_ns = WALL_NS + 2 * SECOND_NS if clock == "file" else WALL_NS + HOUR_NS
    for path in directory.iterdir():
        if clock == "host":
            os.utime(path, ns=(now_ns, now_ns))
    watch = Watch(directory, explain=False)

    watch.look(0.0, now_ns)

    assert snapshot_of(watch).health == "healthy"


def test_one_rank_whose_log_is_old_while_others_go_on_is_not_heard_of(tmp_path: Path) -> None:
    directory = left_logs(tmp_path)
    now_ns = WALL_NS + HOUR_NS
    os.utime(sorted(directory.iterdir())[0], ns=(now_ns, now_ns))
    watch = Watch(directory, explain=False)

    changes = [*watch.look(0.0, now_ns), *watch.look(1.0, now_ns + SECOND_NS)]

    (alarm,) = raised(changes)
    assert (alarm.kind, alarm.condition.ranks) == (Kind.DEATH, (1,))


def test_exception_is_a_death_and_those_that_fail_of_it_are_not_named(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=3)
    watched.logs[1].fault("ValueError", "bad sample", "train.py:9 main").exit()
    for log in watched.logs.but(1):
        log.all_reduce(error="RuntimeError: Connection closed by peer")
        log.fault("RuntimeError", "Connection closed by peer").exit()

    (alarm,) = raised(watched.look_twice())

    assert alarm.kind == Kind.DEATH
    assert alarm.condition.ranks == (1,)
    assert "rank 1 died of ValueError: bad sample" in alarm.condition.summary


def test_rank_that_was_killed_inside_the_collective_in_which_others_fail_is_named(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=3)
    watched.logs[1].all_reduce(pending=True)
    for log in watched.logs.but(1):
        log.all_reduce(error="RuntimeError: Connection closed by peer")
        log.fault("RuntimeError", "Connection closed by peer").exit()

    (alarm,) = raised([*watched.look(), *watched.pass_by(6, without=(0, 1, 2))])

    assert (alarm.kind, alarm.condition.ranks) == (Kind.DEATH, (1,))
    assert alarm.condition.summary == "ranks 0,2 failed in a collective, waiting for rank 1"
    assert "rank 1 gives no sign of life for 4.0 s" in alarm.condition.evidence[0]


def test_ranks_that_failed_for_no_known_reason_are_told_without_a_name(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=3)
    watched.logs[1].all_reduce(pending=True)
    for log in watched.logs.but(1):
        log.all_reduce(error="RuntimeError: Connection closed by peer")
        log.fault("RuntimeError", "Connection closed by peer").exit()

    (alarm,) = raised([*watched.look(), *watched.pass_by(6, without=(0, 2))])

    assert (alarm.kind, alarm.condition.ranks) == (Kind.DEATH, ())


def test_stall_becomes_a_death_when_a_rank_gives_no_sign_of_life(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=3)
    for log in watched.logs.but(2):
        log.all_reduce("train.py:10 step", pending=True)
    watched.look()

    changes = watched.pass_by(14, without=(2,), waiting=(4,))

    assert [(change.what, change.alarm.kind) for change in changes] == [
        ("raised", Kind.STALL),
        ("changed", Kind.DEATH),
    ]
    assert {change.alarm.condition.ranks for change in changes} == {(2,)}
    assert len({change.alarm.number for change in changes}) == 1


def test_divergence_is_told_before_anything_hangs(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=3)
    watched.look()
    for log in watched.logs:
        log.broadcast("train.py:5 sync") if log.rank == 1 else log.all_reduce("train.py:6 sync")

    (alarm,) = raised(watched.look())

    assert alarm.kind == Kind.DIVERGENCE
    assert alarm.condition.ranks == (1,)
    assert "call 4 of group default_pg" in alarm.condition.summary
    assert "ranks 0,2 issued all_reduce of 4 float32, rank 1 issued broadcast of 4 float32" in alarm.condition.summary


def test_calls_of_one_name_that_differ_are_told_by_their_sizes_and_types(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    for log in watched.logs:
        log.all_reduce(shape=(2, 3), dtype="int32" if log.rank == 1 else "float32")

    (alarm,) = raised(watched.look())

    assert "rank 1 issued all_reduce of 6 int32" in alarm.condition.summary


def test_two_ranks_that_part_are_both_shown_and_none_is_named(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=1)
    watched.logs[0].broadcast()
    watched.logs[1].all_reduce()

    (alarm,) = raised(watched.look())

    assert alarm.kind == Kind.DIVERGENCE
    assert alarm.condition.ranks == ()


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_stages_that_exchange_different_messages_do_not_diverge(tmp_path: Path, schedule: str) -> None:
    watched = Watched(tmp_path, world_size=4)
    watched.logs = pipeline(Plan(stages=4, microbatches=4, schedule=schedule, steps=6))
    watched.seconds = max(log.now_ns for log in watched.logs) / SECOND_NS - 5000.0

    changes = watched.look_twice()

    assert raised(changes) == []


def test_collectives_that_part_among_messages_diverge(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=3)
    watched.logs[0].send(1)
    watched.logs[1].recv(0)
    for log in watched.logs:
        log.broadcast() if log.rank == 2 else log.all_reduce()

    (alarm,) = raised(watched.look())

    assert (alarm.kind, alarm.condition.ranks) == (Kind.DIVERGENCE, (2,))
    assert "call 4 of group default_pg" in alarm.condition.summary


def test_recording_that_began_later_is_not_compared(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    group = next(record for record in watched.logs[0].records if isinstance(record, events.Group))
    group.sequence = 3
    watched.logs[0].broadcast()
    watched.logs[1].all_reduce()

    assert watched.look() == []


def test_restart_is_followed_and_ends_the_alarm(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=3)
    watched.logs[1].fault("ValueError", "bad sample").exit()
    (alarm,) = raised(watched.look_twice())

    watched.logs = watched.new_logs(2, attempt=1)
    for log in watched.logs:
        log.header.wall_ns += 60 * SECOND_NS
        log.header.monotonic_ns += 60 * SECOND_NS
    watched.seconds = 60.0
    watched.train(steps=2)
    changes = watched.pass_by(4)

    assert [each.number for each in cleared(changes)] == [alarm.number]
    assert {state.attempt for state in watched.watch.job.ranks.values()} == {1}


def test_slow_rank_is_named_within_thirty_seconds(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=4)
    for _ in range(30):
        watched.train(steps=10)
        watched.look()
    began = watched.seconds

    changes: list[Change] = []
    while not changes:
        watched.train(steps=8, own={2: 0.13})
        changes = watched.look()

    (alarm,) = raised(changes)
    assert alarm.kind == Kind.STRAGGLER
    assert alarm.condition.ranks == (2,)
    assert "1.30 times" in alarm.condition.summary
    assert watched.seconds - began <= 30.0


def test_slow_rank_of_a_fast_job_is_named_too(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    alarms = []
    for _ in range(30):
        watched.train(steps=200, own={0: 0.004, 1: 0.0056})
        alarms += raised(watched.look())

    (alarm,) = alarms
    assert alarm.condition.ranks == (1,)
    assert watched.watch.job.progress().steps_per_second == pytest.approx(1 / 0.0056, rel=0.1)


def test_calls_that_go_on_in_the_background_hold_nobody_up(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    pending = {0: 0, 1: 0, 2: 0}

    for _ in range(250):
        for log in watched.logs:
            log.at(watched.seconds)
            if pending[log.rank]:
                log.done(pending[log.rank], clock="poll")
            pending[log.rank] = log.all_reduce("train.py:8 metric", pending=True)
            if log.rank == 1:  # the last to issue it: nobody is waited for
                log.done(pending[1], clock="poll")
                pending[1] = 0
            log.all_reduce("train.py:9 going", seconds=0.0)
        watched.train(steps=1)

    assert raised(watched.look_twice()) == []


def test_noise_and_moving_load_are_no_straggler(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=4)
    chance = random.Random(1)

    for number in range(60):
        for _ in range(10):
            own = {rank: 0.1 * chance.uniform(0.9, 1.15) for rank in range(4)}
            own[number % 4] *= 1.5
            watched.train(steps=1, own=own)
        assert watched.look() == []


@pytest.mark.skipif(not SERIES.exists(), reason="needs ../shared/data")
@pytest.mark.parametrize("name", sorted(path.name for path in SERIES.glob("*.json")) if SERIES.exists() else [])
def test_healthy_series_give_no_alarm(tmp_path: Path, name: str) -> None:
    series = json.loads((SERIES / name).read_text())
    times = [float(value) for value in series["iteration-time"]["values"].values() if value != "nan"][:400]
    losses = list(series["lm loss"]["values"].values())
    watched = Watched(tmp_path, world_size=4)
    chance = random.Random(2)

    for number, seconds in enumerate(times):
        own = {rank: seconds * chance.uniform(0.95, 1.0) for rank in range(4)}
        watched.train(steps=1, own=own, facts={"loss": losses[number % len(losses)]})
        assert watched.look() == [], number


def test_loss_that_is_no_number_is_told_and_cleared(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=3, facts={"loss": 2.5})
    assert watched.look() == []

    watched.train(steps=1, facts={"loss": "nan"})
    (alarm,) = raised(watched.look())
    watched.train(steps=50, facts={"loss": 2.4})
    changes = watched.look()

    assert alarm.kind == Kind.NON_FINITE
    assert "loss of ranks 0-1 is nan" in alarm.condition.summary
    assert [each.number for each in cleared(changes)] == [alarm.number]


def remember(watched: Watched, used: dict[int, int]) -> None:
    for log in watched.logs:
        log.add(
            events.Memory(
                time_ns=log.now_ns,
                rss_bytes=used[log.rank],
                cgroup_bytes=used[log.rank],
                cgroup_limit_bytes=LIMIT_BYTES,
            )
        )


def test_memory_that_grows_until_it_runs_out_is_told(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    alarms = []

    for number in range(40):
        watched.train(steps=20)
        remember(watched, {0: 2 << 30, 1: (2 << 30) + number * (50 << 20)})
        alarms += raised(watched.look())

    (alarm,) = alarms
    assert alarm.kind == Kind.MEMORY
    assert alarm.condition.ranks == (1,)
    assert "of 10.0 GiB" in alarm.condition.summary


def test_memory_that_settles_is_no_trend(tmp_path: Path) -> None:
    watched = Watched(tmp_path)

    for number in range(60):
        watched.train(steps=20)
        remember(watched, dict.fromkeys(range(2), (6 << 30) - (4 << 30) // (number + 1)))
        assert watched.look() == []


def test_save_that_takes_far_longer_than_before_is_told(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=3)
    for saves in (4, 4, 30):
        numbers = {log.rank: log.begin_phase("save checkpoint") for log in watched.logs}
        changes = watched.pass_by(saves)
        for log in watched.logs:
            log.end_phase("save checkpoint", numbers[log.rank])
        watched.train(steps=3)

    (alarm,) = raised(changes)
    assert alarm.kind == Kind.CHECKPOINT
    assert alarm.condition.limit_seconds == pytest.approx(20.0)
    assert [each.number for each in cleared(watched.pass_by(4))] == [alarm.number]


def test_rank_that_may_be_taking_its_stacks_is_not_given_up_soon(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=3)
    for log in watched.logs.but(2):
        log.all_reduce("train.py:10 step", pending=True)
    watched.pass_by(4, waiting=(4,))

    soon = watched.pass_by(20, without=(2,), waiting=(4,))
    later = watched.pass_by(15, without=(2,), waiting=(4,))

    assert [(change.what, change.alarm.kind) for change in soon] == [("raised", Kind.STALL)]
    assert [(change.what, change.alarm.kind) for change in later] == [("changed", Kind.DEATH)]
