"""Ranks that make the others wait, and those that only seem to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from distdiag import events
from distdiag.findings import Confidence
from tests.slow_jobs import Parts, noisy, one, steady, the_finding, told, trained


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("forward", "compute-straggler"),
        ("backward", "compute-straggler"),
        ("optimizer", "compute-straggler"),
        ("other", "compute-straggler"),
        ("data", "input-straggler"),
    ],
)
@pytest.mark.parametrize("clock", ["wait", "poll"])
def test_the_part_of_the_step_that_makes_one_rank_late_is_named(
    tmp_path: Path, part: str, name: str, clock: str
) -> None:
    finding = the_finding(trained(one(2, part, 0.03), clock=clock), tmp_path)

    assert (finding.name, finding.culprits, finding.victims, finding.cause) == (name, (2,), (0, 1, 3), part)
    assert finding.confidence is Confidence.HIGH
    assert "everyone waits 30 ms per step for rank 2" in finding.summary


def test_a_straggler_tells_what_would_be_gained(tmp_path: Path) -> None:
    finding = the_finding(trained(one(2, "forward", 0.03)), tmp_path)

    assert "without it a step would take 59 ms instead of 89 ms: 34 % of the job" in finding.summary
    assert "ranks 0-1,3 wait for it in all_reduce (train.py:33)" in finding.summary


def test_a_straggler_of_most_steps_is_less_sure(tmp_path: Path) -> None:
    finding = the_finding(trained(one(2, "forward", 0.03, often=0.88)), tmp_path)

    assert (finding.name, finding.confidence) == ("compute-straggler", Confidence.MEDIUM)


@pytest.mark.parametrize("parts", [steady, noisy, one(1, "forward", 0.03, often=0.3), one(1, "forward", 0.004)])
def test_even_noisy_and_seldom_late_ranks_are_healthy(tmp_path: Path, parts: Callable[[int, int], Parts]) -> None:
    assert told(trained(parts), tmp_path).findings == ()


def test_a_rank_that_waits_for_a_processor_is_no_straggler(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.03))
    for record in logs[2].records:
        if isinstance(record, events.Step):
            record.queued_ns = 30_000_000

    assert told(logs, tmp_path).verdict.name == "healthy"


def test_where_processors_are_fought_over_nobody_is_accused(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.08))
    for record in logs[2].records:
        if isinstance(record, events.Step):
            record.queued_ns = 45_000_000  # it is late by 35 ms more

    report = told(logs, tmp_path)

    (mentioned,) = report.findings
    assert (report.verdict.name, mentioned.cause, mentioned.culprits) == ("healthy", "processor", ())
    assert (
        "wait 80 ms of each 139 ms step for rank 2, which itself waits 45 ms of it for a processor" in mentioned.summary
    )


@pytest.mark.parametrize(("longer", "name"), [(0, "healthy"), (25_000_000, "compute-straggler")])
def test_where_the_queue_is_unknown_a_rank_has_to_have_computed_longer(tmp_path: Path, longer: int, name: str) -> None:
    logs = trained(one(2, "forward", 0.03))
    for rank in logs:
        for record in rank.records:
            if isinstance(record, events.Step):
                record.cpu_ns = 50_000_000 + longer * (rank.rank == 2)

    assert told(logs, tmp_path).verdict.name == name


def test_two_slow_ranks_are_both_told_with_what_mending_both_gains(tmp_path: Path) -> None:
    def parts(rank: int, step: int) -> Parts:
        return one(5 if rank == 5 else 2, "forward", 0.03)(rank, step)

    finding = the_finding(trained(parts, ranks=8), tmp_path)

    assert (finding.name, finding.culprits) == ("compute-straggler", (2, 5))
    assert "without them a step would take 59 ms instead of 89 ms" in finding.summary


def test_a_rank_whose_mending_gains_nothing_is_not_accused(tmp_path: Path) -> None:
    def parts(rank: int, step: int) -> Parts:
        usual = one(2, "forward", 0.02)(rank, step)
        late = rank != 2 and step % 3 == rank % 3
        return {**usual, "forward": usual["forward"] + 0.025 * late}

    assert all(finding.culprits == () for finding in told(trained(parts), tmp_path).findings)


def test_few_steps_accuse_nobody(tmp_path: Path) -> None:
    report = told(trained(one(2, "forward", 0.03), steps=8), tmp_path)

    assert report.verdict.name == "healthy"
    assert [each.culprits for each in report.findings] == [()]


def test_nobody_is_accused_on_devices_without_device_times(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.03))
    for rank in logs:
        for record in rank.records:
            if isinstance(record, events.Signature):
                record.device = "cuda"

    report = told(logs, tmp_path)

    assert report.findings == ()
    assert report.performance["ranks"][2]["own_step_seconds"] is None


def test_rank_order_of_the_waiting_is_told(tmp_path: Path) -> None:
    rows = told(trained(one(2, "forward", 0.03)), tmp_path).performance["ranks"]

    assert [row["waits_caused_seconds"] for row in rows] == pytest.approx([0.0, 0.0, 38 * 3 * 0.03, 0.0], rel=0.01)
    assert [row["waits_suffered_seconds"] for row in rows] == pytest.approx([1.14, 1.14, 0.0, 1.14], rel=0.01)
    assert rows[2]["came_last_share"] == 1.0


def test_the_parts_of_the_ledger_add_up_to_the_step(tmp_path: Path) -> None:
    for row in told(trained(noisy), tmp_path).performance["ranks"]:
        assert sum(row["ledger"].values()) == pytest.approx(row["step_seconds"], rel=0.001)
        assert sum(row[f"{name}_share"] for name in ("compute", "communication", "data", "wait")) == pytest.approx(
            1.0, abs=0.001
        )
