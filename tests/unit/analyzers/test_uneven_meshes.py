"""Replicas of a job in several dimensions that part, as where data ends at other batches: no group has a majority."""

from pathlib import Path

import pytest

from distdiag.findings import Verdict
from tests.logs import Logs
from tests.stuck import TIMED_OUT, verdict

STEP = ("train.py:30 <module>", "train.py:19 forward")
LOADER = ("train.py:30 <module>",)
SUM = ("train.py:40 <module>",)


def replicas(batches: tuple[int, ...], *, then: str) -> Logs:
    """Replicas of two ranks each, sharded over one another, that take so many batches."""
    width = len(batches)
    logs = Logs(world_size=2 * width)
    for rank in logs:
        replica, tensor = divmod(rank.rank, 2)
        shard = f"dp{tensor}"
        rank.group(shard, range(tensor, 2 * width, 2), description="mesh_dp")
        rank.group(f"tp{replica}", (2 * replica, 2 * replica + 1), description="mesh_tp")
        for _ in range(min(batches)):
            rank.batch(LOADER)
            rank.all_gather(STEP, group=shard)
            rank.all_reduce(STEP, group=f"tp{replica}")
            rank.end_step()
        if batches[replica] > min(batches):
            call = rank.batch(LOADER).all_gather(STEP, group=shard, pending=True)
        else:
            if then != "breaks":
                rank.batch(LOADER, exhausted=True)
            if then == "exits":
                rank.exit()
                continue
            call = rank.all_reduce(SUM, pending=True)
        rank.done(call, seconds=6.0, error=TIMED_OUT).fault("RuntimeError", TIMED_OUT, STEP).exit(1)
    return logs


@pytest.mark.parametrize("then", ["sums", "exits"])
def test_data_that_ends_in_half_of_a_job_is_told_and_nobody_blamed(tmp_path: Path, then: str) -> None:
    found: Verdict = verdict(replicas((4, 3), then=then), tmp_path)

    assert (found.name, found.culprits) == ("uneven-batches", ())
    assert found.summary.startswith("ranks 2-3 had data for 3 of the 4 batches that ranks 0-1 took, step 3\n")
    assert "in all_gather 4 of group mesh_dp and needs rank 3" in found.summary


@pytest.mark.parametrize("then", ["sums", "exits"])
def test_the_replica_whose_data_ends_before_that_of_most_is_named(tmp_path: Path, then: str) -> None:
    found = verdict(replicas((4, 3, 4), then=then), tmp_path)

    assert (found.name, found.culprits) == ("uneven-batches", (2, 3))


def test_who_leaves_its_loop_before_the_data_ends_is_not_out_of_data(tmp_path: Path) -> None:
    assert verdict(replicas((4, 3), then="breaks"), tmp_path).name != "uneven-batches"


def test_replicas_of_one_side_stand_together_though_only_one_is_in_the_circle(tmp_path: Path) -> None:
    """Half of the ranks come to a barrier of all that the others never call: none of them is fewer than the others."""
    logs = Logs(world_size=4)
    for rank in logs:
        replica, shard = divmod(rank.rank, 2)
        rank.group(f"dp{shard}", (shard, 2 + shard), description="mesh_dp")
        rank.all_reduce(STEP, group=f"dp{shard}")
        saves = replica == 0
        call = rank.barrier(SUM, pending=True) if saves else rank.all_reduce(STEP, group=f"dp{shard}", pending=True)
        rank.done(call, seconds=6.0, error=TIMED_OUT).fault("RuntimeError", TIMED_OUT, STEP).exit(1)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("order-deadlock", ())
    assert "which condition brings some ranks to one of them alone" in found.next_steps[1]
