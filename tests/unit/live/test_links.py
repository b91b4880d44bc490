"""Connections between ranks that stand still, and who is out of reach."""

from pathlib import Path

import pytest

from distdiag.live.links import Links, cut_off
from tests.watching import Watched, raised

ENDS = {(0, 1): ("a:1", "b:1"), (1, 2): ("b:2", "c:2"), (2, 0): ("c:3", "a:3")}
"""Addresses of the connections of a ring of three."""


def held(rank: int) -> list[str]:
    links = []
    for (first, second), (local, remote) in ENDS.items():
        links += [f"{local}>{remote}"] if rank == first else [f"{remote}>{local}"] if rank == second else []
    return links


def ring(*unanswered: tuple[int, int]) -> Links:
    links = Links()
    for rank in range(3):
        own = [">".join(ENDS[pair]) for pair in unanswered if pair[0] == rank]
        links.learn(rank, held(rank), own)
    return links


def test_two_ends_of_a_connection_are_found_by_their_addresses() -> None:
    assert ring((1, 2), (2, 0)).broken() == [(1, 2), (2, 0)]


def test_connection_to_somebody_else_is_nobodys() -> None:
    links = ring()
    links.learn(1, ["b:9>storage:80"], ["b:9>storage:80"])

    assert links.broken() == []


def test_rank_that_moves_again_is_forgotten() -> None:
    links = ring((1, 2), (2, 0))
    links.forget(2)

    assert links.broken() == []


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ([], ()),
        ([(1, 2)], ()),  # either may be the one
        ([(1, 2), (2, 1)], ()),
        ([(1, 2), (2, 0)], (2,)),
        ([(0, 1), (1, 2), (2, 0)], ()),
    ],
)
def test_rank_that_all_broken_connections_share_is_cut_off(
    broken: list[tuple[int, int]], expected: tuple[int, ...]
) -> None:
    assert cut_off(broken, dict.fromkeys(range(3), "host")) == expected


def test_host_that_all_broken_connections_share_is_cut_off() -> None:
    hosts = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}

    assert cut_off([(1, 2), (3, 4)], hosts) == (2, 3)
    assert cut_off([(1, 2), (0, 3)], hosts) == ()


def waiting_for_one_another(tmp_path: Path) -> Watched:
    """All three ranks are in the same call."""
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=10)
    for log in watched.logs:
        log.all_reduce("train.py:10 step", pending=True)
    return watched


def test_stall_names_the_rank_that_the_network_does_not_reach(tmp_path: Path) -> None:
    watched = waiting_for_one_another(tmp_path)
    for log in watched.logs:
        unanswered = {1: [">".join(ENDS[1, 2])], 2: [">".join(ENDS[2, 0])]}.get(log.rank, [])
        log.pulse("train.py:10 step", links=held(log.rank), unanswered=unanswered)

    watched.beat(12)
    (alarm,) = raised(watched.look_twice())

    assert (alarm.kind, alarm.condition.ranks) == ("stall", (2,))
    assert alarm.condition.evidence[0] == "what was sent is not acknowledged: rank 1 to rank 2, rank 2 to rank 0"


def test_stall_in_one_call_names_nobody_where_all_is_acknowledged(tmp_path: Path) -> None:
    watched = waiting_for_one_another(tmp_path)
    for log in watched.logs:
        log.pulse("train.py:10 step", links=held(log.rank))

    watched.beat(12)
    (alarm,) = raised(watched.look_twice())

    assert (alarm.kind, alarm.condition.ranks) == ("stall", ())


def test_rank_whose_log_no_longer_grows_while_its_peers_go_on_is_no_death(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=10)
    watched.look()

    changes = []
    for _ in range(30):
        watched.train(steps=10)
        watched.logs[1].records.clear()  # its disk is full
        changes += watched.look()

    assert watched.seconds > 30.0
    assert changes == []
