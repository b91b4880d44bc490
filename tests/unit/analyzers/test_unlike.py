"""What ranks did unlike one another before their replicas differed, and losses that should differ and do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Finding, Severity
from tests.logs import WORLD, Logs, RankLog

ODD, SINCE, STEPS = 1, 2, 4
"""The rank whose replica is another, from the third of these steps on."""


def numerics(rank: RankLog, **facts: Any) -> None:
    rank.add(events.Numerics(step=rank.step, time_ns=rank.now_ns, **facts))


def trained(do: Callable[[RankLog], object], *, ranks: int = 3) -> Logs:
    """Replicas that go apart on one rank, and what each rank does in each step besides."""
    logs = Logs(world_size=ranks)
    for rank in logs:
        rank.add(events.Wrapper(wrapper=1, name="DistributedDataParallel", group=WORLD, time_ns=rank.now_ns))
        for step in range(STEPS):
            value = 7 + (rank.rank == ODD and step >= SINCE)
            numerics(rank, wrapper=1, checksum=value, digests=value.to_bytes(4, "little"))
            rank.forwards = rank.backwards = 1
            do(rank)
            rank.all_reduce()
            rank.end_step()
        rank.exit()
    return logs


def the_error(logs: Logs, directory: Path) -> Finding:
    (found,) = [each for each in diagnose(logs.load(directory)).findings if each.severity is Severity.ERROR]
    return found


def load(rank: RankLog) -> None:
    if rank.step == 1:
        name = "old.pt" if rank.rank == ODD else "new.pt"
        rank.end_phase("checkpoint load", rank.begin_phase("checkpoint load", directory=f"/saved/{name}"))


def rate(rank: RankLog) -> None:
    lr = 0.05 if rank.rank == ODD and rank.step > 1 else 0.5
    numerics(rank, optimizer={"lr": lr, "momentum": 0.9})


def passes(rank: RankLog) -> None:
    rank.backwards += rank.rank == ODD and rank.step == 1


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (load, "loaded from a checkpoint (old.pt on rank 1, new.pt on ranks 0,2)"),
        (rate, "the optimizer's lr in step 2 (0.05 on rank 1, 0.5 on ranks 0,2)"),
        (passes, "backwards before the update of step 1 (2 on rank 1, 1 on ranks 0,2)"),
    ],
)
def test_what_the_odd_rank_did_unlike_the_others_is_said(
    do: Callable[[RankLog], object], said: str, tmp_path: Path
) -> None:
    found = the_error(trained(do), tmp_path)

    assert (found.name, found.culprits, found.step) == ("replica-desync", (ODD,), SINCE)
    assert f"What was not alike before: {said}." in found.summary
    assert found.action[0] == f"find out why they are not alike: {said}"


def test_what_other_ranks_did_unlike_is_not_said(tmp_path: Path) -> None:
    found = the_error(trained(lambda rank: numerics(rank, optimizer={"lr": 0.1 * (rank.rank == 0)})), tmp_path)

    assert found.culprits == (ODD,)
    assert "not alike" not in found.summary


def test_scales_that_go_apart_where_a_script_averages_by_itself_are_found(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        rank.add(
            events.Wrapper(
                wrapper=1 << 16, name=events.BY_HAND, group=WORLD, time_ns=rank.now_ns, parameters=["0 (8x8)"]
            )
        )
        for step in range(4):
            alone = rank.rank == ODD
            numerics(rank, loss=1.0, loss_scale=32.0 if alone and step > 1 else 64.0, skipped=alone and step == 1)
            rank.all_reduce()
            rank.end_step()
        rank.exit()

    found = the_error(logs, tmp_path)

    assert (found.name, found.culprits, found.step) == ("loss-scale-divergence", (ODD,), 2)


# ---- losses ---------------------------------------------------------------------------------------------------------
def with_losses(loss: Callable[[int, int], float], *, gathered: bool = False) -> Logs:
    logs = Logs(world_size=3)
    for rank in logs:
        rank.add(events.Wrapper(wrapper=1, name="DistributedDataParallel", group=WORLD, time_ns=rank.now_ns))
        for step in range(12):
            rank.forwards, rank.backwards = 1, 0
            if gathered:
                rank.in_phase("").all_reduce()
            rank.backwards = 1
            rank.in_phase("backward").all_reduce()
            numerics(rank, loss=loss(rank.rank, step))
            rank.in_phase("").end_step()
        rank.exit()
    return logs


def duplicates(logs: Logs, directory: Path) -> list[str]:
    return [each.summary for each in diagnose(logs.load(directory)).findings if each.name == "duplicate-samples"]


def test_losses_that_are_the_same_on_two_ranks_in_all_steps_are_mentioned(tmp_path: Path) -> None:
    logs = with_losses(lambda rank, step: 3.0 / (step + 1 + (rank == 0) / 8))

    assert duplicates(logs, tmp_path) == [
        "the losses of ranks 1-2 are equal, bit for bit, in each of 12 steps: they train on the same samples"
    ]


def test_losses_that_may_rightly_be_the_same_are_not(tmp_path: Path) -> None:
    different = with_losses(lambda rank, step: 3.0 / (step + 1 + (rank + 1) * (step == 7)))
    constant = with_losses(lambda rank, step: 0.5)
    averaged = with_losses(lambda rank, step: 3.0 / (step + 1), gathered=True)

    assert duplicates(different, tmp_path / "different") == []
    assert duplicates(constant, tmp_path / "constant") == []
    assert duplicates(averaged, tmp_path / "averaged") == []
