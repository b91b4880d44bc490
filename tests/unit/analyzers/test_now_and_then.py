"""Ranks that are late in some steps only, and several that are late together: what is told, and in which order."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from tests.slow_jobs import Parts, one, steady, the_finding, told, trained


def at(late: Mapping[int, Callable[[int], bool]], part: str = "forward", seconds: float = 0.15) -> Any:
    """Let a part of the step take longer on some ranks, each in steps of its own."""

    def parts(rank: int, step: int) -> Parts:
        usual = steady(rank, step)
        return {**usual, part: usual[part] + seconds * (rank in late and late[rank](step))}

    return parts


@pytest.mark.parametrize(
    ("part", "name"), [("forward", "compute-straggler"), ("other", "compute-straggler"), ("data", "input-straggler")]
)
def test_a_rank_that_is_late_every_few_steps_is_named_with_its_period(tmp_path: Path, part: str, name: str) -> None:
    finding = the_finding(trained(at({1: lambda step: step % 4 == 3}, part)), tmp_path)

    assert (finding.name, finding.culprits, finding.victims) == (name, (1,), (0, 2, 3))
    assert "everyone waits 150 ms for rank 1 in 10 of 38 steps, one in 4," in finding.summary
    assert "without it a step would take 59 ms on average instead of 98 ms: 40 % of the job" in finding.summary


def test_a_rank_that_is_late_from_some_step_on_is_named_with_that_step(tmp_path: Path) -> None:
    finding = the_finding(trained(at({2: lambda step: step >= 25}, seconds=0.06)), tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("compute-straggler", (2,), "forward")
    assert "in 15 of 38 steps, all from step 25 to 39," in finding.summary
    assert finding.action[0].startswith("what began on rank 2 at step 25:")


@pytest.mark.parametrize(
    "late",
    [
        {1: lambda step: step % 12 == 5},  # too seldom, however long
        {1: lambda step: step in (5, 8, 19, 31), 2: lambda step: step in (3, 16, 25, 37)},  # now this one, now that one
        {rank: lambda step: step % 4 == 3 for rank in range(4)},  # all of them, as in an evaluation
    ],
)
def test_steps_that_are_long_now_and_then_accuse_nobody(
    tmp_path: Path, late: Mapping[int, Callable[[int], bool]]
) -> None:
    assert told(trained(at(late)), tmp_path).findings == ()


def test_a_rank_that_waits_for_a_processor_now_and_then_is_not_accused(tmp_path: Path) -> None:
    logs = trained(at({1: lambda step: step % 4 == 3}))
    for record in logs[1].records:
        if isinstance(record, events.Step):
            record.queued_ns = 150_000_000 * (record.step % 4 == 3)

    assert told(logs, tmp_path).verdict.name == "healthy"


def test_a_change_of_pace_of_one_rank_is_told_once(tmp_path: Path) -> None:
    finding = the_finding(trained(at({2: lambda step: step >= 40}, seconds=0.06), steps=80), tmp_path)

    assert (finding.name, finding.culprits) == ("step-time-change", (2,))


def test_ranks_that_are_late_alike_are_one_finding(tmp_path: Path) -> None:
    def parts(rank: int, step: int) -> Parts:
        return one(rank if rank in (4, 5) else -1, "backward", 0.03)(rank, step)

    finding = the_finding(trained(parts, ranks=8), tmp_path)

    assert (finding.culprits, finding.victims) == ((4, 5), (0, 1, 2, 3, 6, 7))
    assert "for ranks 4-5 (host node2), each of which takes 87 ms of its own" in finding.summary
    assert "ranks 0-3,6-7 wait for them" in finding.summary


def test_the_costliest_finding_is_the_verdict(tmp_path: Path) -> None:
    def after(rank: Any, step: int) -> None:
        if step % 3 == 2:
            pause = events.GarbageCollection(time_ns=rank.now_ns, duration_ns=20_000_000, generation=2, step=rank.step)
            rank.add(pause).sleep(0.02)
            rank.add(events.Compile(time_ns=rank.now_ns, duration_ns=100_000_000, step=rank.step)).sleep(0.1)

    findings = told(trained(after=after), tmp_path).findings

    assert [each.name for each in findings] == ["recompilation", "gc-pause"]
    assert findings[1].evidence[0].startswith("13 of 38 steps have collections on all ranks")


def test_what_a_compilation_leaves_to_collect_is_the_compilations(tmp_path: Path) -> None:
    def after(rank: Any, step: int) -> None:
        if rank.rank == 1:
            rank.add(events.Compile(time_ns=rank.now_ns, duration_ns=100_000_000, step=rank.step)).sleep(0.05)
            pause = events.GarbageCollection(time_ns=rank.now_ns, duration_ns=30_000_000, generation=2, step=rank.step)
            rank.add(pause).sleep(0.05)

    assert the_finding(trained(after=after), tmp_path).name == "recompilation"


def test_own_time_in_the_table_is_the_mean_as_its_parts_are(tmp_path: Path) -> None:
    report = diagnose(trained(at({1: lambda step: step % 4 == 3})).load(tmp_path))

    row = report.performance["ranks"][1]
    parts = sum(row["ledger"][f"{name}_seconds"] for name in ("data", "forward", "backward", "optimizer", "other"))
    assert row["own_step_seconds"] == pytest.approx(parts, abs=1e-4)


@pytest.mark.parametrize("samples", [4, 8])
def test_a_straggler_that_gets_more_samples_is_told_so(tmp_path: Path, samples: int) -> None:
    logs = trained(one(2, "forward", 0.03))
    for rank in logs:
        count = samples if rank.rank == 2 else 4
        for step in range(40):
            moment: dict[str, Any] = {"batch": step, "step": step, "loader": 1, "time_ns": rank.now_ns}
            rank.add(events.Batch(edge="begin", **moment), events.Batch(edge="end", samples=count, **moment))

    finding = next(each for each in told(logs, tmp_path).findings if each.name == "compute-straggler")

    assert ("Rank 2 has 8 samples in a step, the others 4." in finding.summary) == (samples == 8)
    assert (finding.action[0] == "give rank 2 as many samples in a step as ranks 0-1,3") == (samples == 8)


def test_a_straggler_that_makes_more_micro_steps_is_told_so(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.03))
    for step in (each for each in logs[2].records if isinstance(each, events.Step)):
        step.backwards = 4

    finding = the_finding(logs, tmp_path)

    assert "Rank 2 has 4 backwards in a step, the others 1." in finding.summary
    assert finding.action[0] == "give rank 2 as many backwards in a step as ranks 0-1,3"


def test_ranks_that_are_late_in_the_same_steps_are_one_finding(tmp_path: Path) -> None:
    finding = the_finding(trained(at(dict.fromkeys((1, 2), lambda step: step % 3 == 0), seconds=0.2)), tmp_path)

    assert (finding.name, finding.culprits, finding.victims) == ("compute-straggler", (1, 2), (0, 3))
    assert "for ranks 1-2 in 13 of 38 steps, one in 3," in finding.summary


def test_the_latest_of_two_stragglers_comes_first(tmp_path: Path) -> None:
    def parts(rank: int, step: int) -> Parts:
        return one(rank, "forward", {1: 0.03, 2: 0.09}.get(rank, 0.0))(rank, step)

    findings = told(trained(parts), tmp_path).findings

    assert [each.culprits for each in findings] == [(2,), (1,)]
    assert "without it and rank 1 a step would take 59 ms" in findings[0].summary
