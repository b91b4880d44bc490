"""A job of several hosts, watched through what their agents say."""

from pathlib import Path

from distdiag.live.alarms import Change, Kind
from distdiag.live.fleet import Fleet
from distdiag.live.nodes import FOLDER, NodeAgent, publish
from distdiag.reporters._lines import plain
from distdiag.reporters.live import Choice, screen
from tests.logs import MONOTONIC_NS, SECOND_NS
from tests.watching import Watched, cleared, raised

RANKS_PER_HOST = 2


class Hosts:
    """A job on several hosts, an agent on each, and who watches what they say."""

    def __init__(self, directory: Path, hosts: int = 3) -> None:
        self.job = Watched(directory, world_size=hosts * RANKS_PER_HOST)
        for log in self.job.logs:
            log.header.host = f"node{log.rank // RANKS_PER_HOST}"
        self.agents = [NodeAgent(directory, f"node{number}") for number in range(hosts)]
        self.fleet = Fleet(directory, explain=False)

    def look(self, *, without: int | None = None) -> list[Change]:
        """Let all agents look and write, then the watcher look."""
        self.job.look()
        now = self.job.seconds
        wall_ns = MONOTONIC_NS + round(now * SECOND_NS)
        for number, agent in enumerate(self.agents):
            summary = agent.look(now, wall_ns)
            if summary is not None and number != without:
                publish(self.job.directory, summary)
        return self.fleet.look(now, wall_ns)

    def pass_by(self, seconds: int, *, without: int | None = None, waiting: tuple[int, ...] = ()) -> list[Change]:
        """Let time pass with a look every second."""
        changes = []
        for _ in range(seconds):
            self.job.beat(1.0, waiting=waiting)
            changes += self.look(without=without)
        return changes


def test_each_agent_reads_the_ranks_of_its_host_alone(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    hosts.job.train(steps=3)

    hosts.look()

    assert [sorted(agent.watch.job.ranks) for agent in hosts.agents] == [[0, 1], [2, 3], [4, 5]]
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["node0.json", "node1.json", "node2.json"]


def test_summaries_tell_step_rates_and_ranks_of_the_whole_job(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    hosts.job.train(steps=20, facts={"tokens": 100})

    changes = hosts.look()

    snapshot = hosts.fleet.snapshot()
    assert changes == []
    assert (snapshot.size, snapshot.world_size, snapshot.step, snapshot.health) == (6, 6, 20, "healthy")
    assert snapshot.steps_per_second is not None
    assert 9 < snapshot.steps_per_second < 11
    assert snapshot.tokens_per_second is not None
    assert 5000 < snapshot.tokens_per_second < 7000
    assert [(group.group, group.newest, group.behind) for group in snapshot.groups] == [("default_pg", 20, {})]


def test_stall_names_the_rank_that_ranks_of_other_hosts_wait_for(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    hosts.job.train(steps=5)
    for log in hosts.job.logs.but(3):
        log.all_reduce("train.py:10 step", pending=True)
    hosts.job.logs[3].batch("data.py:8 read", pending=True)
    hosts.look()

    changes = hosts.pass_by(9, waiting=(6,))

    (alarm,) = raised(changes)
    assert alarm.kind == Kind.STALL
    assert alarm.condition.ranks == (3,)
    assert "is in its data loader" in alarm.condition.summary
    hosts.job.train(steps=1)
    assert [each.number for each in cleared(hosts.pass_by(4))] == [alarm.number]


def test_host_whose_ranks_still_move_is_no_stall(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    hosts.job.train(steps=5)
    hosts.job.logs[5].begin_phase("evaluate")

    assert hosts.pass_by(20) == []


def test_death_on_one_host_is_told_before_those_who_gave_up_on_others(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    hosts.job.train(steps=3)
    hosts.job.logs[4].fault("ValueError", "bad sample").exit()
    for log in hosts.job.logs.but(4):
        log.sleep(1.0).all_reduce(error="RuntimeError: Connection closed by peer")
        log.fault("RuntimeError", "Connection closed by peer").exit()
    hosts.job.seconds += 2.0

    changes = hosts.look()
    hosts.job.seconds += 1.0
    (alarm,) = raised([*changes, *hosts.look()])

    assert alarm.kind == Kind.DEATH
    assert alarm.condition.ranks == (4,)


def test_host_that_is_not_heard_of_is_named(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    hosts.job.train(steps=3)
    hosts.look()

    changes = []
    for _ in range(14):
        hosts.job.train(steps=10)
        changes += hosts.look(without=1)

    (alarm,) = raised(changes)
    assert alarm.condition.ranks == (2, 3)
    assert "nothing is heard of 1 of 3 hosts (node1)" in alarm.condition.summary


def test_slow_rank_is_found_among_all_hosts(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    changes = []
    for _ in range(25):
        hosts.job.train(steps=8, own={2: 0.13})
        changes += hosts.look()

    (alarm,) = raised(changes)
    assert (alarm.kind, alarm.condition.ranks) == (Kind.STRAGGLER, (2,))


def test_restart_leaves_the_old_attempt_behind(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    hosts.job.train(steps=3)
    hosts.look()

    hosts.job.logs = hosts.job.new_logs(6, attempt=1)
    for log in hosts.job.logs:
        log.header.host = f"node{log.rank // RANKS_PER_HOST}"
        log.header.wall_ns += 60 * SECOND_NS
        log.header.monotonic_ns += 60 * SECOND_NS
    hosts.job.seconds = 60.0
    hosts.job.train(steps=2)
    hosts.look()

    snapshot = hosts.fleet.snapshot()
    assert (snapshot.attempt, snapshot.size, snapshot.step) == (1, 6, 2)


def test_summary_that_is_damaged_is_passed_over(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    hosts.job.train(steps=3)
    hosts.look()

    (tmp_path / FOLDER / "node9.json").write_bytes(b'{"schema":')
    hosts.look()

    assert hosts.fleet.snapshot().size == 6


def test_hosts_are_shown_with_how_many_ranks_they_have(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, hosts=40)
    hosts.job.train(steps=8, own={7: 0.3})
    hosts.look()

    lines = [plain(line) for line in screen(hosts.fleet.snapshot(), Choice(), 80, 24)]

    assert "80/80 ranks" in lines[0]
    assert lines[4].split()[:3] == ["node3", "(2)", "7"]
