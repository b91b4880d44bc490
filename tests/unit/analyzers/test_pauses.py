"""Pauses of training: collections of garbage, compilations, and checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from tests.slow_jobs import the_finding, told, trained


def pausing(
    kind: type[events.Event], ranks: tuple[int, ...], *, every: int, seconds: float
) -> Callable[[Any, int], None]:
    """Let some ranks pause now and then, before their next step's work."""

    def after(rank: Any, step: int) -> None:
        if rank.rank in ranks and step % every == every - 1:
            fields = {"generation": 2} if kind is events.GarbageCollection else {}
            record = kind(time_ns=rank.now_ns, duration_ns=round(seconds * 1e9), step=rank.step, **fields)
            rank.add(record).sleep(seconds)

    return after


@pytest.mark.parametrize(("kind", "name"), [(events.GarbageCollection, "gc-pause"), (events.Compile, "recompilation")])
def test_pauses_of_one_rank_are_told_by_their_kind(tmp_path: Path, kind: type[events.Event], name: str) -> None:
    finding = the_finding(trained(after=pausing(kind, (1,), every=5, seconds=0.2)), tmp_path)

    assert (finding.name, finding.culprits, finding.victims) == (name, (1,), (0, 2, 3))
    assert "200 ms at a time" in finding.summary
    assert "38 % of the job" in finding.summary


def test_a_rank_that_pauses_in_every_step_is_told_by_the_pauses_alone(tmp_path: Path) -> None:
    logs = trained(after=pausing(events.GarbageCollection, (1,), every=1, seconds=0.05))

    assert the_finding(logs, tmp_path).name == "gc-pause"


@pytest.mark.parametrize(("every", "seconds"), [(30, 0.2), (5, 0.002)])
def test_single_and_short_collections_are_healthy(tmp_path: Path, every: int, seconds: float) -> None:
    logs = trained(after=pausing(events.GarbageCollection, (1,), every=every, seconds=seconds))

    assert told(logs, tmp_path).findings == ()


def saving(ranks: tuple[int, ...]) -> Callable[[Any, int], None]:
    def after(rank: Any, step: int) -> None:
        if rank.rank in ranks and step % 8 == 7:
            number = rank.begin_phase("save checkpoint")
            rank.sleep(0.3).end_phase("save checkpoint", number)
            written = rank.begin_phase("checkpoint save")
            rank.end_phase("checkpoint save", written)
            rank.records[-1].bytes = 3 << 30

    return after


@pytest.mark.parametrize(("ranks", "culprits"), [((0,), (0,)), ((0, 1, 2, 3), ())])
def test_checkpoints_that_stop_training_are_told(
    tmp_path: Path, ranks: tuple[int, ...], culprits: tuple[int, ...]
) -> None:
    finding = the_finding(trained(after=saving(ranks)), tmp_path)

    assert (finding.name, finding.culprits) == ("checkpoint-stall", culprits)
    assert "300 ms at a time" in finding.summary
    assert ("rank 0 wrote 15.00 GiB in 5 saves, the others nothing" in finding.evidence) == bool(culprits)


@pytest.mark.parametrize(
    ("others", "gigabytes", "cause"),
    [(0.03, 3, "slow-writer"), (0.03, 30, "one-rank-writes"), (0.001, 3, "one-rank-writes")],
)
def test_a_rank_that_writes_longer_than_others_is_no_single_writer(
    tmp_path: Path, others: float, gigabytes: int, cause: str
) -> None:
    def after(rank: Any, step: int) -> None:
        if step % 8 == 7:
            number = rank.begin_phase("checkpoint save")
            rank.sleep(0.3 if rank.rank == 2 else others).end_phase("checkpoint save", number)
            rank.records[-1].bytes = (gigabytes if rank.rank == 2 else 3) << 30

    finding = the_finding(trained(after=after), tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("checkpoint-stall", (2,), cause)
    told_so = "for rank 2 to write a checkpoint, which takes the others 30 ms, in 4 of 38 steps" in finding.summary
    assert told_so == (cause == "slow-writer")
