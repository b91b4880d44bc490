"""Which rank died first is told by when its records came, where the clock of a host is plainly wrong."""

import os
from pathlib import Path

import pytest

from distdiag.live.fleet import Fleet
from distdiag.live.nodes import FOLDER, NodeAgent, publish
from tests.logs import MONOTONIC_NS, SECOND_NS
from tests.watching import Watched, raised

AHEAD_NS = 20 * 60 * SECOND_NS


def trained(directory: Path, ahead_ns: int) -> Watched:
    """Return a job of three hosts, of which the last one has another clock."""
    watched = Watched(directory, world_size=3)
    for log in watched.logs:
        log.header.host = f"node{log.rank}"
    watched.logs[2].header.wall_ns += ahead_ns
    watched.train(steps=10)
    return watched


@pytest.mark.parametrize("ahead_ns", [-AHEAD_NS, AHEAD_NS, SECOND_NS // 2, 0])
def test_who_died_first_is_told_by_when_records_came(tmp_path: Path, ahead_ns: int) -> None:
    watched = trained(tmp_path, ahead_ns)
    watched.look()
    first, second = (1, 2) if ahead_ns < 0 else (2, 1)
    watched.logs[first].fault("ValueError", "bad sample", "train.py:9 main").exit()
    watched.look()
    watched.beat(1.0, without=(first,))
    watched.logs[second].fault("KeyError", "labels", "train.py:9 main").exit()

    alarm = raised(watched.look_twice())[-1]

    assert alarm.condition.summary.startswith(f"ranks 1-2 died; the first: rank {first} died of ValueError")


@pytest.mark.parametrize("ahead_ns", [-AHEAD_NS, AHEAD_NS, 0])
def test_who_died_first_of_all_hosts_is_told_by_when_agents_wrote(tmp_path: Path, ahead_ns: int) -> None:
    watched = trained(tmp_path, ahead_ns)
    first, second = (1, 2) if ahead_ns < 0 else (2, 1)
    watched.logs[first].fault("ValueError", "bad sample", "train.py:9 main").exit()
    watched.beat(1.0, without=(first,))
    watched.logs[second].fault("KeyError", "labels", "train.py:9 main").exit()
    watched.look()
    for number in range(3):
        own_ns = MONOTONIC_NS + round(watched.seconds * SECOND_NS) + (ahead_ns if number == 2 else 0)
        summary = NodeAgent(tmp_path, f"node{number}").look(watched.seconds, own_ns)
        assert summary is not None
        publish(tmp_path, summary)
    written_ns = max(path.stat().st_mtime_ns for path in (tmp_path / FOLDER).iterdir())
    for path in (tmp_path / FOLDER).iterdir():
        os.utime(path, ns=(written_ns, written_ns))  # by the clock of the file system
    fleet = Fleet(tmp_path, explain=False)

    fleet.look(watched.seconds)
    alarm = raised(fleet.look(watched.seconds + 1.0))[-1]

    assert f"the first: rank {first} died of ValueError" in alarm.condition.summary
