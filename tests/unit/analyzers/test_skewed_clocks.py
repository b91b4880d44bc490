"""Slow jobs on hosts whose clocks do not agree."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from distdiag import events
from tests.logs import MONOTONIC_NS, Logs
from tests.slow_jobs import Parts, one, shares_of, told, trained

MOMENTS = ("time_ns", "start_ns", "end_ns", "wait_start_ns")


def moved(logs: Logs, hosts: Mapping[str, tuple[float, float]]) -> Logs:
    """Let the clocks of hosts be off by seconds, and drift by parts per million."""
    for rank in logs:
        seconds, ppm = hosts[rank.header.host]
        rank.header.wall_ns += round(seconds * 1e9)
        for record in rank.records:
            for name in MOMENTS:
                moment = getattr(record, name, None)
                if moment is not None:
                    setattr(record, name, round(MONOTONIC_NS + (moment - MONOTONIC_NS) * (1 + ppm / 1e6)))
    return logs


@pytest.mark.parametrize("clock", ["wait", "poll"])
@pytest.mark.parametrize("hosts", [{"node0": (0.5, 0.0), "node1": (-0.5, 50.0)}, {"node0": (0, -50), "node1": (0, 50)}])
def test_clocks_that_are_off_and_drift_change_nothing(
    tmp_path: Path, hosts: dict[str, tuple[float, float]], clock: str
) -> None:
    def slow_for_long(rank: int, step: int) -> Parts:
        usual = one(2, "backward", 0.06)(rank, step)
        return {**usual, "forward": usual["forward"] + (5.0 if step % 10 == 5 else 0.0)}

    straight = told(trained(slow_for_long, steps=200, clock=clock), tmp_path / "straight")
    skewed = told(moved(trained(slow_for_long, steps=200, clock=clock), hosts), tmp_path / "skewed")

    assert straight.verdict.name == "compute-straggler"
    assert (skewed.verdict.name, skewed.verdict.culprits) == (straight.verdict.name, straight.verdict.culprits)
    for was, now in zip(shares_of(straight), shares_of(skewed), strict=True):
        assert now == pytest.approx(was, abs=0.002)
    assert skewed.performance["clock_error_seconds"] < 0.001


def test_clocks_that_do_not_agree_leave_the_order_to_durations(tmp_path: Path) -> None:
    logs = trained(one(2, "backward", 0.05))
    for rank in logs.only(0, 1):
        for record in rank.records:
            if isinstance(record, events.Done):
                shift = random.Random(record.call).randint(0, 40_000_000)
                record.end_ns += shift

    report = told(logs, tmp_path)

    assert report.performance["clock_error_seconds"] > 0.001
    assert report.performance["ranks"][2]["came_last_share"] > 0.8
