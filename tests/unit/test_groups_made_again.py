"""A world that is destroyed and made again has the same name and members, and counts its calls anew."""

from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.live.alarms import Kind
from distdiag.live.watch import Watch
from distdiag.run import load
from tests.logs import WORLD, Logs

FIRST, SECOND = "train.py:10 train", "train.py:30 evaluate"


def made_again(world_size: int = 3, *, without: int | None = None) -> Logs:
    """Eight calls, then a new world and two calls more."""
    logs = Logs(world_size=world_size)
    for rank in logs:
        for number in range(8):
            if (rank.rank, number) != (without, 4):
                rank.all_reduce(FIRST, shape=(8,))
            rank.end_step()
    for rank in logs:
        rank.at(10.0).group(WORLD, range(world_size), description="default_pg")
        for _ in range(2):
            rank.all_reduce(SECOND)
            rank.end_step()
    return logs


def test_who_does_not_come_to_a_call_of_the_second_world_is_missing(tmp_path: Path) -> None:
    """The first world had a call of that number, to which it did come."""
    logs = made_again()
    logs[1].pulses(SECOND, seconds=30.0)
    for rank in logs.but(1):
        rank.pulses(SECOND, seconds=30.0, waiting=(rank.all_reduce(SECOND, pending=True),))
    verdict = diagnose(logs.load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits) == ("rank-missing", (1,))
    assert "never entered all_reduce 3 of group default_pg" in verdict.summary


def test_a_message_of_the_second_world_is_not_the_other_half_of_one_of_the_first(tmp_path: Path) -> None:
    logs = made_again(2)
    logs[0].send(1, FIRST)
    logs[1].recv(0, FIRST)
    for rank in logs:
        rank.at(20.0).group(WORLD, range(2), description="default_pg")
    logs[0].send(1, SECOND, pending=True)
    logs[0].pulses(SECOND, seconds=30.0)
    logs[1].data_loading("data.py:5 read")
    verdict = diagnose(logs.load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits, verdict.cause) == ("rank-missing", (1,), "data-loading")


def test_a_failure_that_was_left_behind_with_its_world_is_no_divergence(tmp_path: Path) -> None:
    """A rank raised and caught it, the others' call failed, all met anew, and another one hangs there."""
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(3):
            rank.all_reduce(FIRST)
        if rank.rank != 1:
            rank.all_reduce(FIRST, error="RuntimeError: Connection closed by peer")
    for rank in logs:
        rank.at(10.0).group(WORLD, range(3), description="default_pg")
        for _ in range(6):
            rank.all_reduce(FIRST)
    logs[0].pulses(SECOND, seconds=30.0)
    for rank in logs.but(0):
        rank.pulses(FIRST, seconds=30.0, waiting=(rank.all_reduce(FIRST, pending=True),))
    verdict = diagnose(logs.load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits) == ("rank-missing", (0,))


def test_a_group_is_found_by_its_members_where_one_of_them_never_met_anew(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(3):
            rank.all_reduce(FIRST)
    logs[2].fault("ValueError", "no shard 4", FIRST).exit(1)
    for rank in logs.but(2):
        rank.all_reduce(FIRST, error="RuntimeError: Connection closed by peer")
        rank.at(10.0).group(WORLD, range(3), description="default_pg")
        rank.all_reduce(FIRST, pending=True)
        rank.pulses(FIRST, seconds=30.0)
    verdict = diagnose(logs.load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits) == ("rank-died", (2,))


def test_a_watch_compares_each_world_by_itself(tmp_path: Path) -> None:
    logs = made_again()
    for rank in logs:
        rank.exit()
    directory = logs.write(tmp_path)
    watch = Watch(directory, explain=False)
    watch.look(0.0, 0)

    assert not [each for each in watch.alarms.active.values() if each.kind is Kind.DIVERGENCE]


def test_a_segment_that_repeats_a_group_makes_no_new_one(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce(FIRST)
        rank.add(next(record for record in rank.records if getattr(record, "group", None) == WORLD))
        rank.all_reduce(FIRST)
    assert set(load(logs.write(tmp_path)).calls["group_key"]) == {"0[0-1]"}
