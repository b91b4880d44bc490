"""Steps that take longer from some moment on: when, by how much, what grew and on whom; pauses are no change."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.analyzers.slowness.changes import Rise, greatest_rise, levels_of
from distdiag.analyzers.step_time_change import SLOWER
from distdiag.findings import Finding
from tests.logs import MONOTONIC_NS, SECOND_NS, Logs

HEALTHY = Path(__file__).parents[4] / "shared" / "data" / "healthy_series"
STEPS, CHANGE = 120, 70
USUAL = {"data": 0.005, "forward": 0.03, "backward": 0.04, "optimizer": 0.005, "communication": 0.01}
Parts = Mapping[str, float]
Numbers = npt.NDArray[np.float64]


# ---- series ---------------------------------------------------------------------------------------------------------
def rise_in(series: Numbers) -> Rise | None:
    return greatest_rise(series, factor=SLOWER, least=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_a_rise_is_found_where_it_is_behind_noise_and_pauses(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    place = int(numbers.integers(30, 170))
    series = 1 + 0.04 * numbers.standard_normal(200)
    series[::20] *= 3
    series[place:] *= 1.3

    found = rise_in(series)

    assert found is not None
    assert abs(found.start - place) <= 2
    assert found.end == 200
    assert found.factor == pytest.approx(1.3, rel=0.05)


def test_an_episode_has_an_end() -> None:
    series = np.ones(200)
    series[80:120] = 2.0

    assert levels_of(series) == [0, 80, 120, 200]
    assert rise_in(series) == Rise(begin=0, start=80, end=120, before=1.0, after=2.0)


@pytest.mark.parametrize("seed", range(40))
def test_noise_pauses_swings_and_drifts_are_no_rise(seed: int) -> None:
    numbers, steps = np.random.default_rng(seed), np.arange(300)
    noise = numbers.standard_normal(300)
    pauses = 1 + 0.05 * noise
    pauses[::25] *= 6

    assert rise_in(np.exp(0.3 * noise)) is None
    assert rise_in(1 + numbers.exponential(0.4, 300)) is None
    assert rise_in(pauses) is None
    assert rise_in(1 + 0.2 * np.sin(steps / (5 + seed)) + 0.02 * noise) is None
    assert rise_in(1 + steps / 300 + 0.02 * noise) is None


def test_a_slow_beginning_is_no_rise() -> None:
    series = np.ones(200)
    series[:40] = 2.0

    assert rise_in(series) is None


def test_a_level_that_was_there_before_is_no_rise() -> None:
    assert rise_in(np.where(np.arange(240) // 40 % 2, 1.5, 1.0)[40:]) is None


def healthy_series() -> list[Path]:
    return sorted(HEALTHY.glob("*.json")) if HEALTHY.is_dir() else []


def step_seconds(file: Path) -> list[float]:
    """Return the step times of a real run; a word stands where none was recorded."""
    told = json.loads(file.read_text())["iteration-time"]["values"].values()
    return [each for each in told if isinstance(each, int | float)]


@pytest.mark.parametrize("file", healthy_series(), ids=lambda file: file.stem[:20])
def test_real_healthy_runs_keep_their_pace(file: Path, tmp_path: Path) -> None:
    pace = step_seconds(file)
    logs = Logs(world_size=2)
    for rank in logs:
        for seconds in pace:
            begun = rank.now_ns
            rank.all_reduce()
            rank.end_step(seconds=seconds)
            step_of(rank.records[-1]).start_ns = begun
        rank.exit()

    assert rise_in(np.array(pace)) is None
    assert [each.name for each in diagnose(logs.load(tmp_path)).findings] == []


@pytest.mark.parametrize("file", healthy_series(), ids=lambda file: file.stem[:20])
def test_a_rise_in_a_real_pace_is_found(file: Path) -> None:
    series = np.array(step_seconds(file))
    series[60:] *= 1.2

    found = rise_in(series)

    assert found is not None
    assert abs(found.start - 60) <= 1


# ---- logs -----------------------------------------------------------------------------------------------------------
def step_of(record: events.Event) -> events.Step:
    assert isinstance(record, events.Step)
    return record


def trained(
    parts: Callable[[int, int], Parts],
    *,
    facts: Callable[[int], dict[str, Any]] = lambda step: {},
    device: str = "cpu",
    steps: int = STEPS,
) -> Logs:
    """A data-parallel job of three ranks that reduce their gradients at the end of each backward."""
    logs = Logs(world_size=3)
    begin = dict.fromkeys(range(3), 0.0)
    for step in range(steps):
        own = {rank: {**USUAL, **parts(rank, step)} for rank in range(3)}
        arrive = {rank: begin[rank] + sum(own[rank][part] for part in ("data", "forward", "backward")) for rank in own}
        end = max(arrive.values()) + own[0]["communication"]
        for log in logs:
            rank = log.rank
            log.at(arrive[rank]).in_phase("backward")
            log.backwards = log.forwards = 1
            call = log.all_reduce("train.py:33 step", shape=(1 << 14,), pending=True, device=device)
            log.at(end).done(call).in_phase("").sleep(own[rank]["optimizer"])
            times = {f"{part}_ns": round(own[rank][part] * SECOND_NS) for part in ("data", "forward", "optimizer")}
            backward = round((own[rank]["backward"] + end - arrive[rank]) * SECOND_NS)
            log.end_step(seconds=0.0, facts=facts(step), backward_ns=backward, **times)
            step_of(log.records[-1]).start_ns = round(begin[rank] * SECOND_NS) + MONOTONIC_NS
            begin[rank] = (log.now_ns - MONOTONIC_NS) / SECOND_NS
    for log in logs:
        log.exit()
    return logs


def found_in(logs: Logs, directory: Path) -> list[Finding]:
    return list(diagnose(logs.load(directory)).findings)


def longer(part: str, *ranks: int, seconds: float = 0.03) -> Callable[[int, int], Parts]:
    """Let a part of some ranks' steps take longer from one step on."""
    return lambda rank, step: {part: USUAL[part] + seconds * (rank in ranks and step >= CHANGE)}


@pytest.mark.parametrize("part", ["data", "forward", "backward"])
def test_the_rank_whose_own_time_grew_is_named_with_the_part(tmp_path: Path, part: str) -> None:
    (finding,) = found_in(trained(longer(part, 1)), tmp_path)

    assert (finding.name, finding.culprits, finding.victims) == ("step-time-change", (1,), (0, 2))
    assert (finding.step, finding.cause) == (CHANGE, part)
    assert f"from step {CHANGE} on a step takes 1.3x as long as before: 120 ms instead of 90 ms" in finding.summary
    assert "by 30 ms on rank 1, for which the others wait" in finding.summary


@pytest.mark.parametrize("part", ["data", "forward", "optimizer", "communication"])
def test_what_grew_on_all_ranks_accuses_none(tmp_path: Path, part: str) -> None:
    (finding,) = found_in(trained(longer(part, 0, 1, 2)), tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("step-time-change", (), part)
    assert "on all ranks alike" in finding.summary


def test_a_change_that_ends_is_told_with_its_end(tmp_path: Path) -> None:
    (finding,) = found_in(trained(lambda rank, step: {"forward": 0.03 + 0.05 * (40 <= step < 90)}), tmp_path)

    assert finding.summary.startswith("from step 40 to 89 a step takes 1.6x as long")


def test_steps_that_do_more_work_may_take_longer(tmp_path: Path) -> None:
    logs = trained(longer("forward", 0, 1, 2), facts=lambda step: {"tokens": 4096 * (2 if step >= CHANGE else 1)})

    assert found_in(logs, tmp_path) == []


def test_more_micro_steps_may_take_longer(tmp_path: Path) -> None:
    logs = trained(longer("forward", 0, 1, 2))
    for log in logs:
        for record in log.records:
            if isinstance(record, events.Step) and record.step >= CHANGE:
                record.forwards = 2

    assert found_in(logs, tmp_path) == []


def test_waiting_for_a_processor_is_no_change_of_the_job(tmp_path: Path) -> None:
    logs = trained(longer("forward", 1))
    for record in logs[1].records:
        if isinstance(record, events.Step) and record.step >= CHANGE:
            record.queued_ns = 30_000_000

    assert found_in(logs, tmp_path) == []


def test_saving_and_evaluating_every_now_and_then_is_no_change(tmp_path: Path) -> None:
    chance = random.Random(5)

    def parts(rank: int, step: int) -> Parts:
        pause = 0.8 * (step % 30 == 29) + 1.5 * (step == 100)
        return {"forward": 0.03 + chance.uniform(0, 0.004) + pause}

    assert found_in(trained(parts), tmp_path) == []


def test_few_steps_say_nothing(tmp_path: Path) -> None:
    assert found_in(trained(longer("forward", 0, 1, 2, seconds=0.2), steps=CHANGE + 15), tmp_path) == []


def test_without_device_times_no_part_and_no_rank_is_named(tmp_path: Path) -> None:
    findings = found_in(trained(longer("forward", 1), device="cuda"), tmp_path)

    (finding,) = [each for each in findings if each.name == "step-time-change"]
    assert (finding.culprits, finding.cause) == ((), None)
    assert "These logs do not tell which part of the step grew" in finding.summary
