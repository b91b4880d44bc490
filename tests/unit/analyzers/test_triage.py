"""The answers to the questions of the triage."""

from pathlib import Path

from distdiag import events
from distdiag.analyzers.summary.triage import EARLIER, ORDER, PACE, POSITION, SHARES, SMALLER, triage
from distdiag.findings import Verdict
from distdiag.run import Run
from tests.logs import Logs

HEALTHY = Verdict(name="healthy", summary="nothing went wrong")


def answer(run: Run, question: str, verdict: Verdict = HEALTHY) -> str:
    return triage(run, verdict)[question]


def trained(world_size: int = 3) -> Logs:
    logs = Logs(world_size=world_size)
    for rank in logs:
        for _ in range(4):
            rank.all_reduce("train.py:10 step")
            rank.end_step()
    return logs


def test_the_questions_stand_in_the_order_in_which_they_are_asked(tmp_path: Path) -> None:
    answers = triage(trained().load(tmp_path), HEALTHY)

    assert list(answers) == [
        POSITION,
        EARLIER,
        SMALLER,
        ORDER,
        SHARES,
        PACE,
    ]


def test_ranks_at_one_place_are_said_once(tmp_path: Path) -> None:
    logs = trained()
    logs[1].all_reduce("train.py:11 step")

    said = answer(logs.load(tmp_path), POSITION)

    assert said == (
        "ranks 0,2: step 3, completed all_reduce 4, train.py:10; rank 1: step 4, completed all_reduce 5, train.py:11"
    )


def test_an_out_of_memory_error_is_found_before_the_timeouts_it_causes(tmp_path: Path) -> None:
    logs = trained()
    logs[2].fault("torch.OutOfMemoryError", "tried", "train.py:30 grow", fault="out-of-memory", where="raised")
    for rank in logs.only(0, 1):
        rank.sleep(600).fault("builtins.RuntimeError", "Timed out waiting 600000ms", "train.py:10 step")

    said = answer(logs.load(tmp_path), EARLIER)

    assert said.startswith("rank 2 ran out of memory in step 4 at train.py:30, 600 s before the last record")
    assert "Timed out" not in said


def test_a_loss_that_is_not_finite_is_told_with_its_first_rank(tmp_path: Path) -> None:
    logs = trained()
    for rank in logs:
        rank.end_step(facts={"loss": "nan" if rank.rank == 1 else 2.5})
        rank.end_step(facts={"loss": "nan"})

    said = answer(logs.load(tmp_path), EARLIER)

    assert "loss was first not finite on rank 1 in step 4" in said


def test_without_losses_nothing_is_claimed_of_nan(tmp_path: Path) -> None:
    assert "NaN cannot be told" in answer(trained().load(tmp_path), EARLIER)


def test_missing_logs_limit_what_was_looked_for(tmp_path: Path) -> None:
    assert "the logs of rank 1 are missing" in answer(trained().load(tmp_path, without=[1]), EARLIER)


def test_a_smaller_run_names_ranks_step_and_place(tmp_path: Path) -> None:
    verdict = Verdict(name="rank-missing", summary="", culprits=(2,), group="dp", step=7, site="/job/data.py:31")

    said = answer(trained().load(tmp_path), SMALLER, verdict)

    assert said.startswith(
        "run train.py with 2 ranks that do what ranks 0,2 did in group dp until step 7, and look at data.py:31"
    )


def test_without_anybody_to_blame_no_smaller_run_is_made_up(tmp_path: Path) -> None:
    verdict = Verdict(name="transport-stuck", summary="")

    assert answer(trained().load(tmp_path), SMALLER, verdict).startswith("these logs do not tell")


def test_equal_order_is_told_with_who_came_less_far(tmp_path: Path) -> None:
    logs = trained()
    for rank in logs.but(1):
        rank.all_reduce(pending=True)

    said = answer(logs.load(tmp_path), ORDER)

    assert said.endswith("group default_pg: ranks 0,2 issued 5, rank 1 issued 4")


def test_the_first_difference_of_order_shows_both_sides(tmp_path: Path) -> None:
    logs = trained()
    for rank in logs:
        rank.all_reduce("train.py:20 f", shape=(15 if rank.rank else 14,))
        rank.barrier()

    said = answer(logs.load(tmp_path), ORDER)

    assert said == (
        "differs at number 5 of group default_pg: rank 0: all_reduce of 14 float32 at train.py:20; "
        "ranks 1-2: all_reduce of 15 float32 at train.py:20"
    )


def test_a_divergence_that_no_size_shows_is_still_told(tmp_path: Path) -> None:
    verdict = Verdict(name="sequence-divergence", summary="rank 0 made one call more\nin step 3")

    said = answer(trained().load(tmp_path), ORDER, verdict)

    assert said.endswith("but not what they are for: rank 0 made one call more")


def test_without_steps_the_shares_say_why_they_are_unknown(tmp_path: Path) -> None:
    run = Logs(world_size=2).load(tmp_path)

    assert answer(run, SHARES).startswith("these logs cannot tell: no whole training step")
    assert answer(run, ORDER) == "no collective was recorded"


def test_the_slowest_rank_is_compared_with_the_others(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for step in range(10):
            rank.at(step)
            rank.end_step(seconds=0.2 if rank.rank == 1 else 0.1, facts={"tokens": 100})
    for rank in logs:
        for record in rank.records:
            if isinstance(record, events.Step) and record.end_ns is not None:
                record.start_ns = record.end_ns - (200_000_000 if rank.rank == 1 else 100_000_000)

    said = answer(logs.load(tmp_path), PACE)

    assert said == "2,500 tokens/s; rank 1 takes 200 ms of its own for a step, 100 ms is typical (2.0x)"
