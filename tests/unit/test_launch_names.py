"""Ranks of one launch that name it otherwise, because one of them was given another address."""

from pathlib import Path

from distdiag.run import load
from tests.logs import SECOND_NS, Logs


def split(tmp_path: Path, *, odd: tuple[int, ...] = (3,), other: str = "job@host:29501", later: float = 0.0) -> Path:
    """Write the logs of four ranks, some of which call the launch otherwise."""
    logs = Logs(world_size=4, run="job@host:29500")
    for rank in logs:
        if rank.rank in odd:
            rank.header.run = other
            rank.header.wall_ns += int(later * SECOND_NS)
        rank.all_reduce()
        rank.exit()
    return logs.write(tmp_path)


def test_a_rank_that_was_given_another_port_is_of_the_launch(tmp_path: Path) -> None:
    run = load(split(tmp_path, later=2.0))

    assert (run.ranks, run.missing, run.quality.other_runs) == ((0, 1, 2, 3), (), ())


def test_whatever_half_began_last_both_are_read(tmp_path: Path) -> None:
    assert load(split(tmp_path, odd=(0, 1), later=2.0)).ranks == (0, 1, 2, 3)


def test_another_job_is_not(tmp_path: Path) -> None:
    run = load(split(tmp_path, other="other@host:29501"))

    assert run.quality.other_runs


def test_a_launch_that_began_long_before_is_not(tmp_path: Path) -> None:
    run = load(split(tmp_path, later=120.0))

    assert (run.ranks, run.quality.other_runs) == ((3,), ("job@host:29500",))


def test_ranks_that_both_have_are_of_two_launches(tmp_path: Path) -> None:
    split(tmp_path, odd=(), later=0.0)
    again = Logs(world_size=4, run="job@host:29502", attempt=1)
    for rank in again.only(0, 1):
        rank.header.wall_ns += SECOND_NS
        rank.all_reduce()
    again.write(tmp_path, without=(2, 3))

    run = load(tmp_path)

    assert (run.ranks, run.quality.other_runs) == ((0, 1), ("job@host:29500",))


def test_a_launch_whose_ranks_are_all_there_is_whole_by_itself(tmp_path: Path) -> None:
    whole = Logs(world_size=2, run="job@host:29500")
    part = Logs(world_size=4, run="job@host:29501")
    for rank in (*whole, *part):
        rank.all_reduce()
        rank.exit()
    whole.write(tmp_path)
    for rank in part.only(2, 3):
        rank.header.wall_ns += SECOND_NS
    part.write(tmp_path, without=(0, 1))

    assert load(tmp_path).quality.other_runs == ("job@host:29500",)


def restarted(tmp_path: Path, attempt: int, run: str, *, begins: float, restarts: int | None = None) -> None:
    """Write an attempt of a job that an elastic agent starts anew at another port."""
    logs = Logs(world_size=2, run=run, attempt=attempt)
    for rank in logs:
        rank.header.settings = {"TORCHELASTIC_RESTART_COUNT": str(attempt if restarts is None else restarts)}
        rank.header.wall_ns += int(begins * SECOND_NS)
        rank.all_reduce()
        if (attempt, rank.rank) == (0, 1):
            rank.fault("ValueError", "flaky read", "train.py:3 main")
        rank.exit()
    logs.write(tmp_path)


def test_an_elastic_agent_s_earlier_attempts_at_other_ports_are_of_the_launch(tmp_path: Path) -> None:
    for attempt, port in enumerate((40613, 33361, 51200)):
        restarted(tmp_path, attempt, f"localhost:{port}", begins=20.0 * attempt)

    run = load(tmp_path)

    assert (run.attempt, run.quality.other_runs, len(run.earlier)) == (2, (), 2)


def test_a_launch_that_was_never_restarted_has_no_attempts_before(tmp_path: Path) -> None:
    restarted(tmp_path, 0, "localhost:40613", begins=0.0)
    restarted(tmp_path, 1, "localhost:33361", begins=20.0, restarts=0)

    assert load(tmp_path).quality.other_runs == ("localhost:40613",)
