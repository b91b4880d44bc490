"""Jobs that were started anew: which steps were kept, what was lost to whom, and where nothing can be told."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers import diagnose
from distdiag.analyzers.summary import attempts
from distdiag.findings import Report, as_json
from distdiag.reporters import text
from distdiag.run import load
from tests.logs import SECOND_NS, Logs, RankLog

CHECKPOINT = "/checkpoints/newest.pt"
START = 20.0
"""Seconds from the first record of an attempt to its first step."""
STEP = 2.0


def attempt(number: int, begin: float, *, run: str = "job@host:29500", restarts: int | None = None) -> Logs:
    """The logs of an attempt whose processes began so many seconds after the job."""
    logs = Logs(world_size=2, run=run, attempt=number)
    for rank in logs:
        rank.header.wall_ns += round(begin * SECOND_NS)
        rank.header.monotonic_ns += round(begin * SECOND_NS)
        if restarts is not None:
            rank.header.settings = {"TORCHELASTIC_RESTART_COUNT": str(restarts)}
        rank.at(begin + START)
    return logs


def save(rank: RankLog, directory: str = CHECKPOINT, *, failed: bool = False) -> None:
    number = rank.begin_phase("checkpoint save", None, format="torch", directory=directory)
    rank.end_phase("checkpoint save", number, failed=failed)


def resume(logs: Logs, directory: str = CHECKPOINT) -> Logs:
    """Let all ranks load a checkpoint."""
    for rank in logs:
        number = rank.begin_phase("checkpoint load", None, format="torch", directory=directory)
        rank.end_phase("checkpoint load", number)
    return logs


def train(logs: Logs, steps: int, *, save_at: int | None = None, first_told: int | None = None) -> Logs:
    """Train some steps, and save when so many are done."""
    for rank in logs:
        for step in range(steps):
            begun = rank.now_ns
            rank.all_reduce("train.py:33 step")
            facts = {} if first_told is None else {"global_step": first_told + step}
            rank.end_step(seconds=STEP - 0.001, facts=facts)
            rank.records[-1].start_ns = begun  # type: ignore[attr-defined]  # the record of the step
            if rank.rank == 0 and save_at == step + 1:
                save(rank)
    return logs


def die(logs: Logs, *, after: float, type: str = "torch.OutOfMemoryError") -> Logs:
    """Let rank 1 die of its memory, and the other one be told so by its next collective."""
    logs[1].sleep(after)
    logs[1].fault(type, "CUDA out of memory. Tried to allocate 2 GiB", "model.py:9 grow", fault="out-of-memory")
    logs[1].exit(1)
    logs[0].all_reduce("train.py:33 step", seconds=after, error="Connection closed by peer")
    logs[0].fault("RuntimeError", "Connection closed by peer", "train.py:33 step").exit(1)
    return logs


def end(logs: Logs) -> Logs:
    for rank in logs:
        rank.exit()
    return logs


def told(directory: Path, *jobs: Logs) -> Report:
    for logs in jobs:
        logs.write(directory)
    return diagnose(load(directory))


def goodput(report: Report) -> Mapping[str, Any]:
    assert report.goodput is not None
    return report.goodput


def printed(report: Report) -> str:
    out = io.StringIO()
    text.render(report, out)
    return " ".join(out.getvalue().split())


def twice(tmp_path: Path) -> Report:
    """Eight steps and a death of memory, then on from the fifth up to the twelfth."""
    first = die(train(attempt(0, 0.0), 8, save_at=5), after=3.0)
    second = end(train(resume(attempt(1, 100.0)), 7))
    return told(tmp_path, first, second)


def test_attempts_are_joined_by_the_checkpoint_that_the_second_loaded(tmp_path: Path) -> None:
    report = twice(tmp_path)

    assert [(row["first_step"], row["steps"], row["kept_steps"]) for row in report.attempts] == [(0, 8, 5), (5, 7, 7)]
    assert [row["resumed_by"] for row in report.attempts] == ["first attempt", "checkpoint"]
    assert (goodput(report)["steps"], goodput(report)["kept_steps"]) == (15, 12)


def test_what_a_failure_cost_is_parted_into_steps_made_again_standing_and_starting(tmp_path: Path) -> None:
    first, second = twice(tmp_path).attempts

    assert (first["redone_seconds"], first["standstill_seconds"]) == (3 * STEP, 3.0)
    assert first["restart_seconds"] == 120.0 - (START + 8 * STEP + 3.0)
    assert first["lost_seconds"] == 120.0 - (START + 5 * STEP)
    assert second["lost_seconds"] is None


def test_goodput_is_the_time_that_went_into_kept_steps(tmp_path: Path) -> None:
    known = goodput(twice(tmp_path))

    assert known["wall_seconds"] == 120.0 + 7 * STEP
    assert (known["kept_seconds"], known["lost_seconds"]) == (12 * STEP, 90.0)
    assert known["share"] == round(12 * STEP / 134.0, 4)


def test_the_report_says_what_was_lost_to_whom(tmp_path: Path) -> None:
    shown = printed(twice(tmp_path))

    assert "2 attempts in 134 s; 12 of 15 steps kept: 18 % of the time went into them" in shown
    assert "90 s lost to rank 1's out of memory in attempt 0" in shown


def test_what_ended_a_former_attempt_stands_in_the_json(tmp_path: Path) -> None:
    row = json.loads(json.dumps(as_json(twice(tmp_path))))["attempts"][0]

    assert (row["ended_by"]["name"], row["ended_by"]["culprits"]) == ("out-of-memory", [1])


def test_several_failures_are_told_with_the_dearest_first(tmp_path: Path) -> None:
    first = die(train(attempt(0, 0.0), 8, save_at=5), after=3.0)
    second = die(train(resume(attempt(1, 100.0)), 4), after=1.0)
    third = train(resume(attempt(2, 1000.0)), 5)
    die(third, after=1.0)

    report = told(tmp_path, first, second, third)

    assert report.verdict.name == "out-of-memory"
    assert [row["kept_steps"] for row in report.attempts] == [5, 0, 5]
    assert "3 attempts in 17 min; 10 of 17 steps kept" in printed(report)
    assert "16 min lost: 15 min to rank 1's out of memory in attempt 1, 90 s to rank 1's out of memory" in printed(
        report
    )


def test_the_older_of_two_checkpoints_costs_more_steps(tmp_path: Path) -> None:
    first = train(attempt(0, 0.0), 4, save_at=3)
    for rank in first.only(0):
        save(rank, "/checkpoints/other.pt")

    report = told(tmp_path, die(first, after=1.0), end(train(resume(attempt(1, 100.0)), 2)))

    assert [row["kept_steps"] for row in report.attempts] == [3, 2]


def test_a_save_that_failed_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    first = train(attempt(0, 0.0), 5, save_at=3)
    save(first[0], failed=True)

    report = told(tmp_path, die(first, after=1.0), end(train(resume(attempt(1, 100.0)), 2)))

    assert report.attempts[1]["first_step"] == 3


def test_a_checkpoint_holds_the_step_at_which_it_was_copied(tmp_path: Path) -> None:
    first = train(attempt(0, 0.0), 4)
    staged = first[0].begin_phase("checkpoint stage", None, format="sharded", directory=CHECKPOINT)
    first[0].end_phase("checkpoint stage", staged)
    train(first, 2)
    uploaded = first[0].begin_phase("checkpoint upload", None, format="sharded", directory=CHECKPOINT)
    first[0].end_phase("checkpoint upload", uploaded)

    report = told(tmp_path, die(first, after=1.0), end(train(resume(attempt(1, 100.0)), 2)))

    assert report.attempts[1]["first_step"] == 4


def test_the_users_numbers_of_steps_join_attempts_without_checkpoints(tmp_path: Path) -> None:
    first = die(train(attempt(0, 0.0), 8, first_told=1), after=3.0)
    second = end(train(attempt(1, 100.0), 7, first_told=6))

    report = told(tmp_path, first, second)

    assert [(row["first_step"], row["kept_steps"]) for row in report.attempts] == [(1, 5), (6, 7)]
    assert report.attempts[1]["resumed_by"] == "told by the user"


def test_a_restart_without_any_checkpoint_keeps_nothing(tmp_path: Path) -> None:
    first = die(train(attempt(0, 0.0, restarts=0), 8), after=3.0)
    second = end(train(attempt(1, 100.0, restarts=1), 7))

    report = told(tmp_path, first, second)

    assert (goodput(report)["kept_steps"], goodput(report)["steps"]) == (7, 15)
    assert "7 of 15 steps kept: 10 % of the time went into them; no checkpoint was loaded in attempt 1" in printed(
        report
    )


def test_an_attempt_that_trained_nothing_costs_its_time(tmp_path: Path) -> None:
    first = die(train(attempt(0, 0.0), 8, save_at=8), after=3.0)
    second = die(attempt(1, 100.0), after=5.0)
    third = end(train(resume(attempt(2, 200.0)), 2))

    report = told(tmp_path, first, second, third)

    assert [(row["first_step"], row["kept_steps"]) for row in report.attempts] == [(0, 8), (None, 0), (8, 2)]
    assert [row["lost_seconds"] for row in report.attempts] == [100.0 - START - 8 * STEP, 120.0, None]


def test_without_a_sign_of_where_it_went_on_no_number_is_told(tmp_path: Path) -> None:
    report = told(tmp_path, die(train(attempt(0, 0.0), 8), after=3.0), end(train(attempt(1, 100.0), 7)))

    assert goodput(report)["unknown"].startswith("nothing tells at which step attempt 1 went on")
    assert "kept" not in printed(report)


def test_a_checkpoint_of_unknown_origin_tells_nothing(tmp_path: Path) -> None:
    second = end(train(resume(attempt(1, 100.0, restarts=1), "/pretrained.pt"), 7))

    report = told(tmp_path, die(train(attempt(0, 0.0, restarts=0), 8, save_at=4), after=3.0), second)

    assert "loaded /pretrained.pt" in goodput(report)["unknown"]


def test_one_attempt_has_no_lineage(tmp_path: Path) -> None:
    report = told(tmp_path, end(train(attempt(0, 0.0), 8)))

    assert (report.attempts, report.goodput) == ((), None)
    assert "attempt" not in printed(report)


def test_a_launcher_may_take_another_port_for_the_same_job(tmp_path: Path) -> None:
    first = die(train(attempt(0, 0.0, run="77@node0:29500"), 8, save_at=5), after=3.0)
    second = end(train(resume(attempt(1, 100.0, run="77@node0:31111")), 7))

    assert goodput(told(tmp_path, first, second))["kept_steps"] == 12


def test_another_job_in_the_same_directory_is_no_attempt(tmp_path: Path) -> None:
    first = die(train(attempt(0, 0.0, run="76@node0:29500"), 8, save_at=5), after=3.0)
    second = end(train(resume(attempt(1, 100.0, run="77@node0:29500")), 7))

    assert told(tmp_path, first, second).attempts == ()


def test_an_attempt_whose_logs_cannot_be_read_is_counted_all_the_same(tmp_path: Path) -> None:
    attempt(0, 0.0).write(tmp_path)
    for log in tmp_path.iterdir():
        header = log.read_bytes().splitlines(keepends=True)[0]
        log.write_bytes(header)
    second = die(train(attempt(1, 100.0), 4, save_at=2), after=1.0)
    third = end(train(resume(attempt(2, 200.0)), 2))

    report = told(tmp_path, second, third)

    assert [row["kept_steps"] for row in report.attempts] == [0, 2, 2]


def test_of_very_many_attempts_the_newest_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MOST_BYTES", 1)
    first = die(train(attempt(0, 0.0), 8, save_at=8), after=3.0)
    second = die(train(resume(attempt(1, 100.0)), 4, save_at=3), after=5.0)
    third = end(train(resume(attempt(2, 200.0)), 2))

    report = told(tmp_path, first, second, third)

    assert [(row["attempt"], row["first_step"], row["kept_steps"]) for row in report.attempts] == [(1, 0, 3), (2, 3, 2)]
    assert goodput(report)["left_out"] == 1
    assert "2 attempts (the newest of 3) in 124 s; 5 of 6 steps kept" in printed(report)


def test_an_end_without_a_word_is_not_called_orderly(tmp_path: Path) -> None:
    report = told(tmp_path, train(attempt(0, 0.0), 8, save_at=5), end(train(resume(attempt(1, 100.0)), 7)))

    assert "orderly end" not in printed(report)
    assert "90 s lost to an end that its logs do not explain in attempt 0" in printed(report)


def test_a_job_that_ended_well_and_went_on_lost_its_pause(tmp_path: Path) -> None:
    report = told(tmp_path, end(train(attempt(0, 0.0), 8, save_at=8)), end(train(resume(attempt(1, 100.0)), 7)))

    assert "15 of 15 steps kept" in printed(report)
    assert "lost to an orderly end in attempt 0" in printed(report)


def test_sources_that_tell_no_steps_lose_none(tmp_path: Path) -> None:
    def dumped(number: int, begin: float) -> Logs:
        logs = attempt(number, begin)
        for rank in logs:
            rank.header.source = "flight-recorder"
            rank.all_reduce("train.py:33 step")
        return logs

    last = dumped(1, 100.0)
    last[0].all_reduce("train.py:33 step", pending=True)
    report = told(tmp_path, dumped(0, 0.0), last)

    assert goodput(report)["unknown"] == "what was read tells no steps"
    assert "share" not in goodput(report)
    shown = printed(report)
    assert "2 attempts in 120 s" in shown
    assert "steps kept" not in shown
    assert "lost" not in shown


def test_a_job_that_never_came_to_its_first_step_kept_none(tmp_path: Path) -> None:
    report = told(tmp_path, die(attempt(0, 0.0), after=3.0), die(attempt(1, 100.0), after=3.0))

    assert "2 attempts in 123 s; no step was completed" in printed(report)
