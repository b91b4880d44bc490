"""Jobs that are slow on all ranks alike: data, communication, and collectives that are too small."""

from pathlib import Path

import pytest

from distdiag import events
from tests.logs import Logs
from tests.slow_jobs import Parts, steady, the_finding, told, trained, wrapped


def test_data_that_is_late_on_all_ranks_starves_them(tmp_path: Path) -> None:
    def hungry(rank: int, step: int) -> Parts:
        return {**steady(rank, step), "data": 0.09}

    finding = the_finding(trained(hungry), tmp_path)

    assert (finding.name, finding.culprits, finding.victims) == ("data-starvation", (), (0, 1, 2, 3))
    assert "wait 90 ms of each 147 ms step" in finding.summary


@pytest.mark.parametrize(("every", "found"), [(4, True), (10, False)])
def test_data_that_is_late_now_and_then_starves_all_ranks_too(tmp_path: Path, every: int, found: bool) -> None:
    def pausing(rank: int, step: int) -> Parts:
        return {**steady(rank, step), "data": 0.3 if step % every == 3 else 0.001}

    findings = told(trained(pausing), tmp_path).findings

    assert [each.name for each in findings] == ["data-starvation"] * found
    assert not found or "wait 300 ms at a time for their data loaders, in 5 of 20 steps" in findings[0].summary


def test_first_steps_with_cold_caches_starve_nobody(tmp_path: Path) -> None:
    def cold(rank: int, step: int) -> Parts:
        return {**steady(rank, step), "data": 0.09 if step < 20 else 0.001}

    assert told(trained(cold), tmp_path).findings == ()


def test_communication_without_waiting_bounds_a_job(tmp_path: Path) -> None:
    finding = the_finding(trained(transfer=0.08, size_bytes=64 << 20), tmp_path)

    assert (finding.name, finding.culprits, finding.op) == ("communication-bound", (), "all_reduce")
    assert "80 ms of each 137 ms step" in finding.summary
    assert any("64.0 MiB between 4 ranks: 80 ms, 1.26 GB/s" in said for said in finding.evidence)


def test_small_messages_that_take_long_are_no_matter_of_bandwidth(tmp_path: Path) -> None:
    assert told(trained(transfer=0.08, size_bytes=1 << 12), tmp_path).findings == ()


def test_many_small_units_are_told_as_too_fine(tmp_path: Path) -> None:
    finding = the_finding(wrapped(50, 8 << 10), tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("tiny-collectives", (), "wrapping")
    assert (
        "50 collectives a step at train.py:9, half of them under 8 KiB, take 100 ms of each 200 ms" in finding.summary
    )
    assert "50 FSDP units" in finding.summary


def test_steps_that_one_log_lost_do_not_count_for_the_others(tmp_path: Path) -> None:
    logs = wrapped(50, 8 << 10)
    logs[1].records = [r for r in logs[1].records if not (isinstance(r, events.Step) and r.step in (4, 6))]

    (finding,) = [each for each in told(logs, tmp_path).findings if each.name == "tiny-collectives"]

    assert "50 collectives a step at train.py:9, half of them under 8 KiB, take 100 ms" in finding.summary


@pytest.mark.parametrize("logs", [wrapped(10, 8 << 10), wrapped(50, 64 << 10)])
def test_few_or_large_collectives_are_not_tiny(tmp_path: Path, logs: Logs) -> None:
    assert "tiny-collectives" not in [finding.name for finding in told(logs, tmp_path).findings]
