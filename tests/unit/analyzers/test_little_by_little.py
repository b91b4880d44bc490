"""Steps that become longer and longer, data that comes too late since one moment, and batches that wait in turn."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from distdiag.findings import Finding
from tests.slow_jobs import Parts, noisy, one, steady, the_finding, told, trained

STEPS = 120


def growing(part: str, seconds: float, rank: int | None = None) -> Callable[[int, int], Parts]:
    """Let a part of each step take longer than in the step before, on one rank or on all."""

    def parts(each: int, step: int) -> Parts:
        usual = steady(each, step)
        more = seconds * step if rank in (None, each) else 0.0
        return {**usual, part: usual[part] + more}

    return parts


def warnings_of(parts: Callable[[int, int], Parts], directory: Path, **options: Any) -> list[Finding]:
    return list(told(trained(parts, steps=STEPS, **options), directory).findings)


def test_steps_that_become_longer_and_longer_on_all_ranks_are_said_without_a_culprit(tmp_path: Path) -> None:
    (finding,) = warnings_of(growing("other", 0.0005), tmp_path)

    assert (finding.name, finding.cause, finding.culprits, finding.step) == ("step-time-change", "other", (), None)
    assert "longer and longer: 74 ms in the first half of the run, 104 ms in the second" in finding.summary
    assert "30 ms on all ranks alike" in finding.summary
    assert "retain_graph" in finding.action[0]


def test_growth_of_two_parts_is_told_as_both(tmp_path: Path) -> None:
    def parts(rank: int, step: int) -> Mapping[str, float]:
        usual = steady(rank, step)
        return {**usual, **{name: usual[name] + 0.0003 * step for name in ("forward", "backward")}}

    (finding,) = warnings_of(parts, tmp_path)

    assert finding.cause is None
    assert "forward grew by 18 ms" in finding.summary
    assert "backward grew by 18 ms" in finding.summary


def test_a_rank_that_becomes_slower_and_slower_is_told_once(tmp_path: Path) -> None:
    (finding,) = warnings_of(growing("other", 0.001, rank=2), tmp_path)

    assert (finding.name, finding.culprits) == ("compute-straggler", (2,))
    assert "slower and slower: by 16 ms in the first quarter of the steps, by 104 ms in the last" in finding.evidence[1]


def test_steps_that_grow_with_their_tokens_or_stay_within_noise_are_none(tmp_path: Path) -> None:
    def tokens(rank: int, step: int) -> dict[str, int]:
        return {"tokens": 1000 + 20 * step}

    assert warnings_of(growing("forward", 0.0005), tmp_path / "tokens", facts=tokens) == []
    assert warnings_of(noisy, tmp_path / "noisy") == []
    assert warnings_of(growing("forward", 0.00015), tmp_path / "little") == []


def test_steps_that_grow_with_the_positions_of_their_batches_are_none(tmp_path: Path) -> None:
    logs = trained(growing("forward", 0.0005), steps=STEPS)
    for rank in logs:
        for step in range(STEPS):
            moment: dict[str, Any] = {"batch": step, "step": step, "loader": 1, "time_ns": rank.now_ns}
            rank.add(events.Batch(edge="begin", **moment), events.Batch(edge="end", positions=100 + 2 * step, **moment))

    assert told(logs, tmp_path).findings == ()


@pytest.mark.parametrize(("steps", "names"), [(4, []), (8, ["compute-straggler"])])
def test_a_rank_that_is_late_in_each_of_a_few_steps_is_only_mentioned(
    steps: int, names: list[str], tmp_path: Path
) -> None:
    report = told(trained(one(1, "forward", 0.2), steps=steps), tmp_path)

    assert report.verdict.name == "healthy"
    assert [each.name for each in report.findings] == names
    assert all("in each of 6 steps rank 1 takes 257 ms of its own" in each.summary for each in report.findings)


def test_epochs_that_begin_anew_with_short_steps_are_none(tmp_path: Path) -> None:
    def parts(rank: int, step: int) -> Parts:
        return growing("forward", 0.002)(rank, step % 40)

    assert warnings_of(parts, tmp_path) == []


def test_data_that_comes_too_late_since_one_moment_is_told_once(tmp_path: Path) -> None:
    def parts(rank: int, step: int) -> Parts:
        return {**steady(rank, step), "data": 0.06 if step >= 60 else 0.002}

    finding = the_finding(trained(parts, steps=STEPS), tmp_path)

    assert (finding.name, finding.cause, finding.step) == ("step-time-change", "data", 60)


def test_batches_that_wait_for_one_another_are_one_finding(tmp_path: Path) -> None:
    def parts(rank: int, step: int) -> Parts:
        return {**steady(rank, step), "data": 0.04 + 0.02 * ((rank + step) % 4)}

    finding = the_finding(trained(parts, steps=STEPS), tmp_path)

    assert finding.name == "data-starvation"
    assert "Now this and now that rank gets its batch last" in finding.summary
    assert "a lock" in finding.action[1]
