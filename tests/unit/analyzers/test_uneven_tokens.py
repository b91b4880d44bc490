"""Steps that are uneven because of what is in them: lengths, tokens, and experts."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Confidence, Report
from distdiag.run import Run
from tests.slow_jobs import STEPS, Parts, one, steady, the_finding, trained, whole


def lengths_of(rank: int, step: int) -> list[int]:
    chance = random.Random(rank * 1000 + step)
    return [chance.randint(100, 900) for _ in range(2)]


def by_length(rank: int, step: int) -> Parts:
    squares = sum(length**2 for length in lengths_of(rank, step))
    usual = steady(rank, step)
    return {**usual, "forward": squares * 2e-8, "backward": squares * 4e-8}


def test_uneven_lengths_are_told_apart_from_slow_ranks(tmp_path: Path) -> None:
    logs = trained(by_length, facts=lambda rank, step: {"lengths": lengths_of(rank, step)})

    finding = the_finding(logs, tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("token-imbalance", (), "lengths")
    assert "sums of lengths and of their squares explain 100 %" in finding.evidence[0]


@pytest.mark.parametrize("of_run", [diagnose, lambda run: whole(run)])
def test_batches_say_what_the_user_did_not(tmp_path: Path, of_run: Callable[[Run], Report]) -> None:
    logs = trained(by_length)
    for rank in logs:
        for step in range(STEPS):
            lengths = lengths_of(rank.rank, step)
            squares = sum(length**2 for length in lengths)
            rank.add(
                events.Batch(batch=step, edge="end", time_ns=0, step=step, tokens=sum(lengths), tokens_squared=squares)
            )

    report = of_run(logs.load(tmp_path))

    assert (report.verdict.name, report.verdict.cause) == ("token-imbalance", "lengths")
    assert report.performance["tokens_per_second"] > 0


def test_a_rank_with_the_most_tokens_in_every_step_is_no_slow_rank(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.03), facts=lambda rank, step: {"tokens": 2000 if rank == 2 else 800 + step % 3})

    finding = the_finding(logs, tmp_path)

    assert (finding.name, finding.culprits) == ("token-imbalance", (2,))


def test_even_tokens_do_not_excuse_a_slow_rank(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.03), facts=lambda rank, step: {"tokens": 800 + (rank * 7 + step * 3) % 5})

    assert the_finding(logs, tmp_path).name == "compute-straggler"


def test_without_lengths_forward_and_backward_that_grow_together_say_it(tmp_path: Path) -> None:
    logs = trained(by_length)
    for rank in logs:
        for record in rank.records:
            if isinstance(record, events.Step):
                record.cpu_ns = round(sum(by_length(rank.rank, record.step).values()) * 1e9)

    finding = the_finding(logs, tmp_path)

    assert (finding.name, finding.confidence) == ("token-imbalance", Confidence.MEDIUM)
    assert "lengths were not told" in finding.evidence[0]


def routing(tokens: Callable[[int, int], int]) -> Callable[[Any, int], None]:
    """Let a router send so many tokens to the expert of each rank."""

    def exchanged(rank: Any, step: int) -> None:
        to, arriving = [tokens(each, step) // 4 for each in range(4)], [tokens(rank.rank, step) // 4] * 4
        splits = {"input_splits": to, "output_splits": arriving}
        rank.call("all_to_all_single", "moe.py:7 dispatch", seconds=0.0, **splits)

    return exchanged


def popular(rank: int, step: int) -> int:
    return 400 if rank == 2 else 96 + 4 * ((rank * 7 + step * 3) % 5)


def by_turns(rank: int, step: int) -> int:
    return 400 if rank == step % 4 else 96 + 4 * ((rank * 7 + step * 3) % 5)


@pytest.mark.parametrize(("tokens", "culprits"), [(popular, (2,)), (by_turns, ())])
def test_experts_with_more_tokens_are_no_slow_ranks(
    tmp_path: Path, tokens: Callable[[int, int], int], culprits: tuple[int, ...]
) -> None:
    logs = trained(
        lambda rank, step: {**steady(rank, step), "forward": 1e-4 * tokens(rank, step - 1)}, after=routing(tokens)
    )

    finding = the_finding(logs, tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("token-imbalance", culprits, "experts")
    assert (finding.op, finding.site) == ("all_to_all_single", "moe.py:7")
    assert "2.2x as many as the average rank has" in finding.summary
    assert "400 tokens a step on the rank with the most, 178 on average" in finding.evidence


def test_a_few_more_tokens_do_not_excuse_a_rank_that_is_much_slower(tmp_path: Path) -> None:
    logs = trained(one(2, "forward", 0.06), after=routing(lambda rank, step: 104 if rank == 2 else 100))

    assert the_finding(logs, tmp_path).name == "compute-straggler"
