"""Steps that wait for their slowest rank, now this one and now that one, and rhythms that a few strays disturb."""

import random
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from distdiag import events
from distdiag.analyzers.slowness.rhythm import rhythm_of
from distdiag.findings import Confidence
from tests.slow_jobs import Parts, noisy, one, steady, the_finding, told, trained
from tests.unit.analyzers.test_uneven_tokens import by_turns, routing


def rollout(rank: int, step: int) -> Parts:
    """What a rank generates in a step differs in length."""
    return {**steady(rank, step), "other": random.Random(rank * 1000 + step).lognormvariate(-3.0, 0.5)}


def jitter(spread: float) -> Callable[[int, int], Parts]:
    def parts(rank: int, step: int) -> Parts:
        usual = steady(rank, step)
        return {**usual, "forward": usual["forward"] + 0.057 * abs(random.Random(rank * 1000 + step).gauss(0, spread))}

    return parts


def taking_turns(ranks: Collection[int], part: str) -> Callable[[int, int], Parts]:
    def parts(rank: int, step: int) -> Parts:
        usual, turn = steady(rank, step), sorted(ranks)[step % len(ranks)]
        return {**usual, part: usual[part] + 0.03 * (rank == turn)}

    return parts


def test_a_rollout_of_uneven_answers_is_told_and_accuses_nobody(tmp_path: Path) -> None:
    finding = the_finding(trained(rollout), tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("compute-straggler", (), "other")
    assert finding.confidence is Confidence.MEDIUM
    assert "for its slowest rank, now this and now that one\nThey differ between the optimizer" in finding.summary
    assert finding.lost_share == pytest.approx(0.25, abs=0.05)
    assert any("distdiag.step(lengths=[...])" in action for action in finding.action)


def test_a_rollout_before_several_steps_of_training_is_told_with_its_rhythm(tmp_path: Path) -> None:
    def parts(rank: int, step: int) -> Parts:
        return (
            {**steady(rank, step), "other": 3 * rollout(rank, step)["other"]} if step % 4 == 0 else steady(rank, step)
        )

    finding = the_finding(trained(parts, steps=60), tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("compute-straggler", (), "other")
    assert finding.summary.startswith("one step in 4 waits ")


def test_what_tokens_explain_of_uneven_steps_is_told_though_it_is_not_all(tmp_path: Path) -> None:
    def tokens(rank: int, step: int) -> dict[str, float]:
        return {"tokens": rollout(rank, step)["other"] * 1e4 + random.Random(rank + step * 1000).gauss(0, 250)}

    finding = the_finding(trained(rollout, facts=tokens), tmp_path)

    assert "what was told of tokens explains" in finding.summary
    assert not any("distdiag.step" in action for action in finding.action)


@pytest.mark.parametrize(
    ("ranks", "part", "name"),
    [
        (range(4), "backward", "compute-straggler"),
        (range(4), "data", "input-straggler"),
        ((1, 2), "forward", "compute-straggler"),
    ],
)
def test_ranks_that_take_turns_are_told_by_part_and_none_is_accused(
    tmp_path: Path, ranks: Collection[int], part: str, name: str
) -> None:
    finding = the_finding(trained(taking_turns(ranks, part)), tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == (name, (), part)


@pytest.mark.parametrize(
    "parts", [jitter(0.1), lambda rank, step: rollout(rank, step) if step < 18 else steady(rank, step)]
)
def test_jitter_and_uneven_beginnings_are_healthy(tmp_path: Path, parts: Callable[[int, int], Parts]) -> None:
    assert told(trained(parts, ranks=8), tmp_path).findings == ()


def test_what_scatters_in_all_parts_of_the_step_is_the_noise_of_a_machine(tmp_path: Path) -> None:
    assert told(trained(noisy, ranks=12), tmp_path).findings == ()


def test_ranks_that_wait_for_processors_by_turns_are_healthy(tmp_path: Path) -> None:
    logs = trained(rollout)
    for rank in logs:
        for record in rank.records:
            if isinstance(record, events.Step):
                record.queued_ns = round(0.7e9 * rollout(rank.rank, record.step)["other"])

    assert told(logs, tmp_path).findings == ()


def test_the_ranks_of_a_busy_host_are_mentioned_together(tmp_path: Path) -> None:
    logs = trained(lambda rank, step: one(rank if rank > 3 else -1, "forward", 0.08)(rank, step), ranks=6)
    for rank in logs:
        for record in rank.records:
            if isinstance(record, events.Step):
                record.queued_ns = 45_000_000 * (rank.rank > 3)

    (mentioned,) = told(logs, tmp_path).findings

    assert (mentioned.cause, mentioned.culprits, mentioned.victims) == ("processor", (), (0, 1, 2, 3))
    assert mentioned.summary.startswith("ranks 0-3 wait 80 ms of each 139 ms step for ranks 4-5 (host node2), which")


def test_pauses_of_one_rank_and_then_another_stay_the_pauses_finding(tmp_path: Path) -> None:
    logs = trained(taking_turns(range(4), "other"))
    for rank in logs:
        for record in [each for each in rank.records if isinstance(each, events.Step)]:
            if record.step % 4 == rank.rank and record.start_ns is not None:
                pause = {"time_ns": record.start_ns, "duration_ns": 30_000_000, "step": record.step}
                rank.add(events.GarbageCollection(generation=2, **pause))

    assert the_finding(logs, tmp_path).name == "gc-pause"


# ---- strays ---------------------------------------------------------------------------------------------------------
def test_tokens_that_one_rank_forgot_to_tell_in_some_steps_still_explain(tmp_path: Path) -> None:
    def tokens(rank: int, step: int) -> dict[str, float]:
        return {} if rank == 1 and step in (11, 25) else {"tokens": rollout(rank, step)["other"] * 1e4}

    finding = the_finding(trained(rollout, facts=tokens), tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("token-imbalance", (), "lengths")


def test_experts_explain_though_some_steps_go_round_the_router(tmp_path: Path) -> None:
    exchanged = routing(by_turns)
    logs = trained(
        lambda rank, step: {**steady(rank, step), "forward": 1e-4 * by_turns(rank, step - 1)},
        after=lambda rank, step: None if step in (14, 30) else exchanged(rank, step),
    )

    finding = the_finding(logs, tmp_path)

    assert (finding.name, finding.cause) == ("token-imbalance", "experts")
    assert "400 tokens a step on the rank with the most, 178 on average" in finding.evidence


def test_a_rank_that_is_late_from_some_step_on_but_for_strays_is_told_so(tmp_path: Path) -> None:
    late = {4, *range(20, 40)} - {27, 33}

    finding = the_finding(trained(lambda rank, step: one(1, "forward", 0.06 * (step in late))(rank, step)), tmp_path)

    assert "rank 1 in 19 of 38 steps, nearly all from step 20 to 39," in finding.summary
    assert finding.action[0].startswith("what began on rank 1 at step 20:")


def test_what_comes_once_in_so_many_steps_is_named_where_it_costs_less(tmp_path: Path) -> None:
    def parts(late: Callable[[int], bool]) -> Callable[[int, int], Parts]:
        return lambda rank, step: one(0, "other", 0.12 * late(step))(rank, step)

    regular = the_finding(trained(parts(lambda step: step % 10 == 9), steps=80), tmp_path / "regular")
    by_chance = told(trained(parts(lambda step: step in (7, 9, 22, 38, 43, 60, 61, 74)), steps=80), tmp_path / "chance")

    assert (regular.name, regular.culprits) == ("compute-straggler", (0,))
    assert "in 8 of 78 steps, one in 10," in regular.summary
    assert by_chance.findings == ()


@pytest.mark.parametrize(
    ("late", "every"),
    [
        ([9, 19, 29, 33, 39, 49, 59], 10),  # a stray
        ([9, 19, 39, 49, 59, 69], 10),  # one left out
        ([7, 9, 22, 38, 43], None),
        ([2, 4, 9, 11, 12, 14], None),
        ([3, 20, 21, 22, 23, 24, 25, 26, 27, 28], 1),
        ([*range(20, 27), *range(28, 34), *range(35, 41), 42, 43, 44], 1),
        ([3, 4, 11, 12, 20, 21, 30, 31], None),
        ([2, 3, 4, 5, 6, 7, 40], 1),  # a beginning, and a stray
        ([5], None),
    ],
)
def test_a_rhythm_bears_a_stray_but_is_not_found_in_chance(late: list[int], every: int | None) -> None:
    rhythm = rhythm_of(late)

    assert (None if rhythm is None else rhythm.every) == every
