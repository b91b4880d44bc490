"""Clocks of hosts that are made one, as far as anything compares them."""

from pathlib import Path

from distdiag.run import Run
from tests.logs import SECOND_NS, Logs

AHEAD_NS = 20 * 60 * SECOND_NS


def spread_ns(run: Run, op: str = "all_reduce") -> int:
    """Return how far apart the members of a collective see its end, at most."""
    calls = run.calls[run.calls["op"] == op]
    ends = calls.groupby(["group_key", "seq"], observed=True)["end_ns"]
    return int((ends.max() - ends.min()).max())


def pairs(logs: Logs, *members: tuple[int, int], times: int = 6) -> Logs:
    """Let pairs of ranks reduce in groups of their own."""
    for number in range(times):
        for one, other in members:
            for rank in logs.only(one, other):
                rank.at(10.0 * (number + 1))
                rank.group(f"{one}-{other}", (one, other)).all_reduce(group=f"{one}-{other}")
    return logs


def test_a_clock_is_compared_through_others(tmp_path: Path) -> None:
    logs = pairs(Logs(world_size=4, ranks_per_host=1), (0, 1), (1, 2), (2, 3))
    for rank, ahead in ((1, 1), (2, -2), (3, 3)):
        logs[rank].header.wall_ns += ahead * AHEAD_NS

    run = logs.load(tmp_path)

    assert spread_ns(run) == 0
    assert run.quality.clock_error_ns == 0
    assert len(run.islands) == 1


def test_hosts_that_share_nothing_with_others_are_not_compared_with_them(tmp_path: Path) -> None:
    logs = pairs(Logs(world_size=4, ranks_per_host=1), (0, 1), (2, 3))
    logs[3].header.wall_ns += AHEAD_NS

    run = logs.load(tmp_path)

    assert spread_ns(run) == 0
    assert run.islands == (frozenset({0, 1}), frozenset({2, 3}))
    assert run.quality.clock_error_ns is None


def test_few_collectives_bind_a_clock_by_cause_and_effect(tmp_path: Path) -> None:
    logs = Logs(world_size=4, ranks_per_host=1)
    for rank in logs.but(3):
        for number in range(10):
            rank.at(10.0 * (number + 1)).all_reduce(group="0")
    logs[3].at(10.0).all_reduce()
    logs[3].header.wall_ns += AHEAD_NS

    run = logs.load(tmp_path)

    assert spread_ns(run) == 0
    assert run.quality.clock_error_ns == 1_000_000  # the one call of rank 3 lasted as long


def test_how_long_members_wait_is_what_one_collective_leaves_open(tmp_path: Path) -> None:
    logs = Logs(world_size=2, ranks_per_host=1)
    logs[0].at(10.0).all_reduce(seconds=4.0)
    logs[1].at(13.0).all_reduce(seconds=1.0)
    logs[1].header.wall_ns -= AHEAD_NS

    run = logs.load(tmp_path)

    assert run.quality.clock_error_ns == 4 * SECOND_NS
    assert spread_ns(run) <= 4 * SECOND_NS


def test_one_sided_operations_compare_no_clocks(tmp_path: Path) -> None:
    logs = Logs(world_size=2, ranks_per_host=1)
    for number in range(10):
        logs[0].at(10.0 * (number + 1)).broadcast()
        logs[1].at(10.0 * (number + 1) + 2.0).broadcast()  # what was sent waits for it

    run = logs.load(tmp_path)

    assert run.quality.clock_error_ns is None
    assert run.quality.clock_corrections_ns == {}


def test_one_collective_does_not_join_what_may_be_two_launches(tmp_path: Path) -> None:
    logs = Logs(world_size=2, ranks_per_host=1)
    for rank in logs:
        rank.all_reduce()
    logs[1].header.wall_ns += 7200 * SECOND_NS

    run = logs.load(tmp_path)

    assert run.quality.clock_error_ns is None
    assert len(run.islands) == 2
