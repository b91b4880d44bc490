"""What a recorded step would take: simulated from the ledger where ranks meet once in a step, else not at all."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Report
from tests.logs import Logs

OWN, TRANSFER = 0.06, 0.004
"""Seconds of a step."""
STEPS = 14

Work = Callable[[int, int], float]
"""Seconds of (step, rank)."""


def job(*meetings: Work, steps: int = STEPS, world: int = 4, data: Work | None = None) -> Logs:
    """Ranks that work as long as told by (step, rank) before each collective of a step, and wait for the last."""
    logs = Logs(world_size=world)
    clock = 0.0
    for step in range(steps):
        begun = clock
        for number, own in enumerate(meetings):
            waiting = data if data is not None and not number else even(0.0)
            arrivals = {rank.rank: clock + own(step, rank.rank) + waiting(step, rank.rank) for rank in logs}
            latest = max(arrivals.values())
            for rank in logs:
                rank.at(arrivals[rank.rank])
                rank.done(rank.all_reduce(pending=True), seconds=latest - arrivals[rank.rank] + TRANSFER)
            clock = latest + TRANSFER
        for rank in logs:
            loading = 0.0 if data is None else data(step, rank.rank)
            rank.at(begun).end_step(seconds=clock - begun, data_ns=round(loading * 1e9))
    for rank in logs:
        rank.exit()
    return logs


def even(seconds: float) -> Work:
    return lambda step, rank: seconds


def late(slow: int, seconds: float) -> Work:
    return lambda step, rank: OWN + (seconds if rank == slow else 0.0)


def simulated(report: Report) -> Mapping[str, Any]:
    told: Mapping[str, Any] | None = report.performance["what_if"]
    assert told is not None, report.performance["unknown"]
    return told


def test_a_slow_rank_costs_what_the_others_wait_for_it(tmp_path: Path) -> None:
    report = diagnose(job(late(2, 0.03)).load(tmp_path))

    told = simulated(report)
    assert told["source"] == "steps"
    assert told["step_seconds"] == pytest.approx(OWN + 0.03 + TRANSFER, rel=1e-4)
    assert told["slowdown"] == pytest.approx((OWN + 0.03 + TRANSFER) / (OWN + TRANSFER), rel=1e-4)
    assert told["worker_share"] == pytest.approx(1.0, abs=1e-3)
    assert [each["rank"] for each in told["slowest_workers"]] == [2]
    assert told["last_stage_share"] is None
    assert told["gpu_hours"] is None  # these ranks compute on CPUs
    assert (report.verdict.name, told["cause"]) == ("compute-straggler", "compute-straggler")


def test_slow_data_of_one_rank_is_what_its_loader_costs(tmp_path: Path) -> None:
    report = diagnose(job(even(OWN), data=lambda step, rank: 0.05 if rank == 1 else 0.01).load(tmp_path))

    told = simulated(report)
    assert told["by_type"]["data"] == pytest.approx((OWN + 0.05 + TRANSFER) / (OWN + 0.01 + TRANSFER), rel=1e-4)
    assert told["by_type"]["other"] == pytest.approx(1.0, abs=1e-4)
    assert (report.verdict.name, told["cause"]) == ("input-straggler", "input-straggler")


def test_even_ranks_lose_nothing_and_their_report_says_no_more(tmp_path: Path) -> None:
    report = diagnose(job(even(OWN)).load(tmp_path))

    told = simulated(report)
    assert told["slowdown"] == pytest.approx(1.0, abs=1e-4)
    assert told["cause"] is None
    assert report.verdict.name == "healthy"


def test_ranks_that_are_late_by_turns_within_a_step_are_not_simulated(tmp_path: Path) -> None:
    report = diagnose(job(late(0, 0.05), late(3, 0.05)).load(tmp_path))

    assert report.performance["what_if"] is None
    assert "during the step" in report.performance["unknown"]["what_if"]


@pytest.mark.parametrize(("steps", "world", "reason"), [(5, 4, "too few"), (STEPS, 1, "waits for nobody")])
def test_too_little_is_not_simulated(steps: int, world: int, reason: str, tmp_path: Path) -> None:
    report = diagnose(job(even(OWN), steps=steps, world=world).load(tmp_path))

    assert report.performance["what_if"] is None
    assert reason in report.performance["unknown"]["what_if"]


def test_devices_without_times_are_not_simulated(tmp_path: Path) -> None:
    logs = job(even(OWN))
    for rank in logs:
        for record in rank.records:
            if isinstance(record, events.Signature):
                record.device = "cuda"

    report = diagnose(logs.load(tmp_path))

    assert report.performance["what_if"] is None
    assert "device" in report.performance["unknown"]["shares"]
