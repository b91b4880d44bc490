"""Accumulated gradients: averaging them in each micro-step is told with its cost, once a step is right."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Finding, Severity
from tests.logs import Logs

MICRO_STEPS = 4
PARAMETERS = 1 << 20


def accumulated(
    *, reduced: int = MICRO_STEPS, seconds: float = 0.01, steps: int = 20, device: str = "cpu", own: float = 0.02
) -> Logs:
    """Steps of several micro-steps, the last ``reduced`` of which average the gradients."""
    logs = Logs(world_size=2)
    for log in logs:
        for _ in range(steps):
            for micro in range(1, MICRO_STEPS + 1):
                log.sleep(own)
                log.in_phase("backward")
                log.forwards = log.backwards = micro
                if micro > MICRO_STEPS - reduced:
                    log.all_reduce("train.py:33 step", shape=(PARAMETERS,), seconds=seconds, device=device)
            log.in_phase("")
            total = round(1e9 * MICRO_STEPS * own / 2)
            backward = total + round(1e9 * reduced * seconds)
            log.end_step(seconds=0.001, forward_ns=total, backward_ns=backward, data_ns=0, optimizer_ns=1_000_000)
        log.exit()
    return logs


def found_in(logs: Logs, directory: Path) -> list[Finding]:
    return [each for each in diagnose(logs.load(directory)).findings if each.code.startswith("DD2")]


def test_averaging_in_each_micro_step_is_told_with_its_cost(tmp_path: Path) -> None:
    (finding,) = found_in(accumulated(), tmp_path)

    assert (finding.name, finding.severity) == ("redundant-gradient-sync", Severity.WARNING)
    assert "averaged in each of 4 micro-steps of a step (train.py:33): once, 4.0 MiB instead of 16.0 MiB" in (
        finding.summary
    )
    assert "a step would take 91 ms instead of 121 ms: 25 % of the job" in finding.summary
    assert "no_sync()" in finding.action[0]


def test_averaging_once_a_step_is_right(tmp_path: Path) -> None:
    assert found_in(accumulated(reduced=1), tmp_path) == []


def test_what_costs_little_is_not_told(tmp_path: Path) -> None:
    assert found_in(accumulated(seconds=0.001), tmp_path) == []


def test_where_communication_fills_the_steps_it_is_told_once(tmp_path: Path) -> None:
    (finding,) = found_in(accumulated(seconds=0.05), tmp_path)

    assert (finding.name, finding.cause) == ("communication-bound", "every-micro-step")


def test_other_gradients_in_each_backward_are_not_redundant(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for log in logs:
        for _ in range(20):
            for number in (1, 2):
                log.sleep(0.02).in_phase("backward")
                log.backwards = number
                log.all_reduce("train.py:33 step", shape=(PARAMETERS * number,), seconds=0.01)
            log.in_phase("").end_step(seconds=0.001, backward_ns=60_000_000)
        log.exit()

    assert found_in(logs, tmp_path) == []


@pytest.mark.parametrize("reduced", [1, MICRO_STEPS])
def test_without_device_times_it_is_information(tmp_path: Path, reduced: int) -> None:
    found = found_in(accumulated(reduced=reduced, device="cuda"), tmp_path)

    assert [(each.name, each.severity) for each in found] == [("redundant-gradient-sync", Severity.INFO)] * (
        reduced > 1
    )
