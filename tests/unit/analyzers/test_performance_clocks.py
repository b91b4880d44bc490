"""Clocks of hosts that are minutes apart, where the time of steps is told."""

from pathlib import Path

from distdiag.analyzers.performance import Measured, measure
from tests.logs import SECOND_NS, Logs

STEPS = 24
AHEAD_NS = 20 * 60 * SECOND_NS


def trained(*groups: tuple[int, ...], world_size: int = 4) -> Logs:
    """Return a job of one rank on each host that reduces in groups; the odd ranks come 30 ms late to each."""
    logs = Logs(world_size=world_size, ranks_per_host=1)
    for rank in logs:
        for members in groups:
            if rank.rank in members:
                rank.group(str(members), members)
        for step in range(STEPS):
            rank.at(1.0 + step)
            for number, members in enumerate(groups):
                if rank.rank in members:
                    late = 0.03 * (rank.rank % 2)
                    rank.at(1.0 + step + 0.1 * number + late).all_reduce(group=str(members), seconds=0.05 - late)
            rank.at(1.5 + step).end_step()
    return logs


def measured(logs: Logs, directory: Path) -> Measured:
    return measure(logs.load(directory))


def test_minutes_between_clocks_change_nothing(tmp_path: Path) -> None:
    right = measured(trained((0, 1, 2, 3)), tmp_path / "right")
    logs = trained((0, 1, 2, 3))
    for rank, ahead in ((1, 1), (2, -1)):
        logs[rank].header.wall_ns += ahead * AHEAD_NS

    wrong = measured(logs, tmp_path / "wrong")

    assert wrong.alignment.comparable
    assert wrong.ranks["caused_ns"].tolist() == right.ranks["caused_ns"].tolist()
    assert wrong.ledger.equals(right.ledger)


def test_hosts_that_share_no_group_are_not_compared(tmp_path: Path) -> None:
    logs = trained((0, 1), (2, 3))
    for rank in logs.only(2, 3):
        rank.header.wall_ns += AHEAD_NS

    found = measured(logs, tmp_path)

    assert found.alignment.error_ns is None
    assert not found.alignment.comparable
    assert (
        found.ranks["caused_ns"].tolist()
        == measured(trained((0, 1), (2, 3)), tmp_path / "right").ranks["caused_ns"].tolist()
    )
