"""Connections of ranks that are all in the same call: who does not reach whom."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import Logs

RING = {(0, 1): ("a:1", "b:1"), (1, 2): ("b:2", "c:2"), (2, 0): ("c:3", "a:3")}
"""Addresses of the connections of a ring of three."""


def verdict(tmp_path: Path, *unanswered: tuple[int, int], early: bool = False) -> Verdict:
    """All ranks are in the same call; the connections are told while they are, or before."""
    logs = Logs(world_size=3)
    for rank in logs:
        links = []
        for (first, second), (local, remote) in RING.items():
            links += (
                [f"{local}>{remote}"] if rank.rank == first else [f"{remote}>{local}"] if rank.rank == second else []
            )
        own = [">".join(RING[pair]) for pair in unanswered if pair[0] == rank.rank]
        for _ in range(5):
            rank.sleep(1.0).all_reduce("train.py:10 step")
            rank.end_step()
        if early:
            rank.sleep(1.0).pulse("train.py:10 step", links=links, unanswered=own)
            rank.sleep(1.0)
        call = rank.all_reduce("train.py:10 step", pending=True)
        rank.pulses("train.py:10 step", seconds=60, waiting=(call,), every=1.0)
        if not early:
            rank.pulse("train.py:10 step", waiting=(call,), links=links, unanswered=own)
        rank.pulses("train.py:10 step", seconds=60, waiting=(call,), every=1.0)
    return diagnose(logs.load(tmp_path)).verdict


def test_ranks_that_do_not_reach_one_another_are_told(tmp_path: Path) -> None:
    told = verdict(tmp_path, (1, 2), (2, 0))

    assert told.name == "transport-stuck"
    assert "what was sent is not acknowledged: rank 1 to rank 2, rank 2 to rank 0" in told.evidence
    assert told.next_steps[0] == "look at the network of rank 2 (node0) first"
    assert told.culprits == ()


def test_one_connection_does_not_tell_which_end_it_is(tmp_path: Path) -> None:
    assert verdict(tmp_path, (1, 2)).next_steps[0] == "look at the network between these ranks first"


@pytest.mark.parametrize("early", [False, True])
def test_nothing_is_said_where_all_is_acknowledged_or_was_so_before(tmp_path: Path, early: bool) -> None:
    told = verdict(tmp_path, *([(1, 2), (2, 0)] if early else []), early=early)

    assert told.name == "transport-stuck"
    assert "acknowledged" not in " ".join(told.evidence)
