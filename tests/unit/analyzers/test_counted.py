"""Calls left out of groups whose calls are all alike: only ranks of other groups show which member it was."""

from collections.abc import Collection
from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import Logs, RankLog

PAIRS = {"1": (0, 1), "2": (2, 3), "3": (4, 5)}
LAYER = ("train.py:9 main", "layers.py:20 forward", "comm.py:5 reduce")
GRADIENTS = ("train.py:9 main", "train.py:44 step", "comm.py:5 reduce")
END = ("train.py:9 main", "train.py:60 finish")


def paired(layers: dict[int, int] | None = None, *, steps: int = 3, labelled: bool = True) -> Logs:
    """Six ranks in three pairs; ``layers`` is how many calls a rank makes on its pair in each step, else 3."""
    logs = Logs(world_size=6)
    for rank in logs:
        for name, members in PAIRS.items():
            if rank.rank in members:
                rank.group(name, members, description="tp")
        for _ in range(steps):
            for _ in range((layers or {}).get(rank.rank, 3)):
                rank.all_reduce(LAYER, group=_pair(rank))
            if labelled:
                rank.end_step()
    return logs


def stand_still(logs: Logs, waiting_in_pair: Collection[int]) -> None:
    """Let some ranks wait in one more call on their pair, and the others at the end of the job."""
    for rank in logs:
        rank.at(30)
        if rank.rank in waiting_in_pair:
            call = rank.all_reduce(LAYER, group=_pair(rank), pending=True)
        else:
            call = rank.barrier(END, pending=True)
        rank.pulses(LAYER if rank.rank in waiting_in_pair else END, seconds=30, waiting=[call])


def verdict(logs: Logs, directory: Path) -> Verdict:
    return diagnose(logs.load(directory)).verdict


def _pair(rank: RankLog) -> str:
    return next(name for name, members in PAIRS.items() if rank.rank in members)


def test_who_left_a_call_out_is_named_by_what_the_other_pairs_did(tmp_path: Path) -> None:
    logs = paired(steps=2)
    for rank in logs:
        for _ in range(2 if rank.rank == 2 else 3):
            rank.all_reduce(LAYER, group=_pair(rank), pending=rank.rank == 3 and rank.calls == 8)
        if rank.rank != 3:
            rank.end_step()
    rank = logs[3]
    rank.pulses(LAYER, seconds=30, waiting=[rank.calls])
    for rank in logs.but(3):
        call = rank.barrier(END, pending=True)
        rank.pulses(END, seconds=30, waiting=[call])

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.step) == ("sequence-divergence", (2,), 2)
    assert found.site == "comm.py:5"
    assert "rank 2 left out 1 all_reduce of group tp (2 ranks), step 2" in found.summary


def test_who_made_one_call_more_is_named_by_what_the_other_pairs_did(tmp_path: Path) -> None:
    logs = paired(steps=2)
    for rank in logs:
        for _ in range(4 if rank.rank == 4 else 3):
            rank.all_reduce(LAYER, group=_pair(rank))
        rank.end_step()
    for rank in logs:
        for _ in range(3):
            rank.all_reduce(LAYER, group=_pair(rank), pending=rank.rank == 4 and rank.calls == 12)
            if rank.rank == 4 and rank.calls == 13:
                break
        else:
            rank.end_step()
    logs[4].pulses(LAYER, seconds=30, waiting=[13])
    for rank in logs.but(4):
        call = rank.barrier(END, pending=True)
        rank.pulses(END, seconds=30, waiting=[call])

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.step) == ("sequence-divergence", (4,), 2)
    assert "issued 1 all_reduce too many" in found.summary


def test_without_steps_a_call_left_out_is_seen_where_all_others_agree(tmp_path: Path) -> None:
    logs = paired({0: 2, 1: 2}, steps=1, labelled=False)
    stand_still(logs, waiting_in_pair=[1])

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("sequence-divergence", (0,))


def test_stages_with_fewer_layers_are_not_called_odd(tmp_path: Path) -> None:
    logs = paired({0: 2, 1: 2, 4: 5, 5: 5})
    stand_still(logs, waiting_in_pair=[1])

    found = verdict(logs, tmp_path)

    assert found.name == "order-deadlock"


def test_groups_used_in_another_order_after_equal_rounds_stay_an_order_deadlock(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    first, second = ("train.py:9 main", "train.py:20 one"), ("train.py:9 main", "train.py:30 two")
    for rank in logs:
        rank.group("1", (0, 1, 2)).group("2", (0, 1, 2))
        for _ in range(3):
            rank.all_reduce(first, group="1")
            rank.all_reduce(second, group="2")
        name, line = ("2", second) if rank.rank == 2 else ("1", first)
        call = rank.all_reduce(line, group=name, pending=True)
        rank.pulses(line, seconds=30, waiting=[call])

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("order-deadlock", (2,))
