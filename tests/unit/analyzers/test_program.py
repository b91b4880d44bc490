"""Two sides of a group without a majority: ranks of other groups, in the same program, say which of them left it."""

from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import Logs, RankLog

PAIRS = {"1": (0, 2), "2": (1, 3)}
TENSOR = {"3": (0, 1), "4": (2, 3)}
LAYER = ("train.py:9 main", "model.py:20 forward")
LOG = ("train.py:9 main", "train.py:40 log")
TIMED_OUT = "RuntimeError: Timed out waiting 6000ms for recv operation to complete"


def in_pairs(odd: int | None, *, steps: int = 2, ranks: int = 4) -> Logs:
    """Ranks in pairs that gather two modules a step; one of them takes the second first in the last step."""
    logs = Logs(world_size=ranks)
    for rank in logs:
        name = next(name for name, members in PAIRS.items() if rank.rank in members)
        rank.group(name, PAIRS[name], description="dp")
        for step in range(steps):
            if rank.rank == odd and step == steps - 1:
                rank.all_gather(LAYER, group=name, shape=(8,), module="second", pending=True)
                continue
            rank.all_gather(LAYER, group=name, module="first", pending=step == steps - 1)
            if step < steps - 1:
                rank.all_gather(LAYER, group=name, shape=(8,), module="second")
                rank.end_step()
    return logs


def fail(logs: Logs) -> None:
    for rank in logs:
        rank.done(rank.calls, seconds=6.0, error=TIMED_OUT).fault("RuntimeError", TIMED_OUT, LAYER).exit(1)


def verdict(logs: Logs, directory: Path) -> Verdict:
    fail(logs)
    return diagnose(logs.load(directory)).verdict


def test_the_rank_that_left_what_all_others_did_is_named(tmp_path: Path) -> None:
    found = verdict(in_pairs(2), tmp_path)

    assert (found.culprits, found.group) == ((2,), "dp")
    assert "ranks 1,3 did in their own groups what rank 0 did" in found.evidence


def test_the_side_that_was_taken_for_the_rule_may_be_the_odd_one(tmp_path: Path) -> None:
    found = verdict(in_pairs(0), tmp_path)

    assert found.culprits == (0,)


def test_without_a_step_behind_them_ranks_of_other_groups_may_have_other_parts(tmp_path: Path) -> None:
    found = verdict(in_pairs(2, steps=1), tmp_path)

    assert found.culprits == ()


def _tensor(rank: RankLog) -> str:
    return next(name for name, members in TENSOR.items() if rank.rank in members)


def in_circle(taken: int) -> Logs:
    """Rank 3's epoch ended after some batches; it waits in the world, and the others in their groups."""
    logs = Logs(world_size=4)
    for rank in logs:
        name = next(name for name, members in PAIRS.items() if rank.rank in members)
        rank.group(name, PAIRS[name], description="dp").group(_tensor(rank), TENSOR[_tensor(rank)], description="tp")
        for _ in range(3):
            rank.batch(LAYER)
            rank.all_gather(LAYER, group=_tensor(rank))
            rank.all_gather(LAYER, group=name)
            rank.end_step()
        if rank.rank == 3:
            if taken == 3:
                rank.batch(LAYER, exhausted=True)
            rank.all_reduce(LOG, pending=True)
            continue
        rank.batch(LAYER)
        if rank.rank < 2:
            rank.all_gather(LAYER, group=_tensor(rank))
            rank.all_gather(LAYER, group=name, pending=True)
        else:
            rank.all_gather(LAYER, group=_tensor(rank), pending=True)
    return logs


def test_a_circle_of_groups_begins_with_the_rank_whose_data_ended(tmp_path: Path) -> None:
    found = verdict(in_circle(3), tmp_path)

    assert (found.name, found.culprits) == ("uneven-batches", (3,))
    assert "batches taken: 3 against 4" in found.summary


def test_a_circle_of_groups_begins_with_the_rank_that_left_its_loop(tmp_path: Path) -> None:
    found = verdict(in_circle(4), tmp_path)

    assert (found.name, found.culprits) == ("sequence-divergence", (3,))
