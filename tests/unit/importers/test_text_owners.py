"""Who said what, when, and in which attempt: from prefixes, processes, names of files, and by elimination."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from distdiag import events
from distdiag.importers import stderr
from distdiag.importers._contract import Imported
from distdiag.importers._text.filenames import attempt_of, ranks_of
from tests import training_output as out

MAIN = ("/workspace/train.py", 88, "main")
ERROR = "ValueError: bad sample"


def imported(tmp_path: Path, files: Mapping[str, str]) -> list[Imported]:
    paths = []
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        paths.append(path)
    return [each for each in stderr.read(paths) if each.rank is not None]


def faults_by_rank(tmp_path: Path, files: Mapping[str, str]) -> dict[int, list[str]]:
    return {
        each.rank: [record.type or "" for record in each.events if isinstance(record, events.Fault)]
        for each in imported(tmp_path, files)
        if each.rank is not None
    }


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["rank0.log", "rank1.log"], [0, 1]),
        (["job-17-rank-3.err"], [3]),
        (["worker.12.out"], [12]),
        (["attempt_0/0/stderr.log", "attempt_0/1/stderr.log"], [0, 1]),
        (["train.0.log", "train.1.log", "train.2.log"], [0, 1, 2]),
        (["slurm-4711_0.out", "slurm-4711_1.out"], [0, 1]),
    ],
)
def test_names_of_files_tell_ranks(names: list[str], ranks: list[int]) -> None:
    paths = [Path("logs") / name for name in names]

    assert [ranks_of(paths).get(path) for path in paths] == ranks


@pytest.mark.parametrize("names", [["slurm-4711.out"], ["train_20240823.log"], ["a1.log", "a7.log"], ["train.log"]])
def test_other_numbers_in_names_tell_none(names: list[str]) -> None:
    assert not ranks_of([Path(name) for name in names])


def test_the_path_tells_the_attempt() -> None:
    assert attempt_of(Path("none_x/attempt_2/0/stderr.log")) == 2
    assert attempt_of(Path("logs/train.log")) == 0


def test_lines_without_a_prefix_are_of_the_rank_that_the_files_name_tells(tmp_path: Path) -> None:
    files = {
        "rank0.err": out.text(*out.traceback("KeyError: 'a'", MAIN)),
        "rank1.err": out.text(*out.traceback(ERROR, MAIN)),
    }

    assert faults_by_rank(tmp_path, files) == {0: ["KeyError"], 1: ["ValueError"]}


def test_lines_without_a_prefix_beside_such_with_one_are_nobodys(tmp_path: Path) -> None:
    output = out.text(*(out.watchdog(5, number) for number in (7, 8)), *out.traceback(ERROR, MAIN))

    records = [record for each in imported(tmp_path, {"some.log": output}) for record in each.events]

    assert [record.where for record in records if isinstance(record, events.Fault)] == ["unsigned"]


def test_lines_without_a_prefix_are_of_the_rank_that_name_and_prefixes_tell_alike(tmp_path: Path) -> None:
    output = out.text(out.watchdog(5, 7), *out.traceback(ERROR, MAIN))

    assert faults_by_rank(tmp_path, {"rank5.err": output})[5] == ["ValueError"]


def test_tasks_of_srun_are_ranks_where_nothing_says_otherwise(tmp_path: Path) -> None:
    output = out.text(
        *out.traceback(ERROR, MAIN, prefix="2: "), *out.failed_call("barrier", out.gloo_timeout(), MAIN, rank=0)
    )

    assert faults_by_rank(tmp_path, {"some.log": output})[2] == ["ValueError"]


def test_tasks_of_srun_are_no_ranks_where_their_lines_name_others(tmp_path: Path) -> None:
    output = out.text(
        "1: " + out.watchdog(9, 7),
        "1: " + out.watchdog(10, 7),
        *out.traceback(ERROR, MAIN, prefix="1: "),
    )

    assert faults_by_rank(tmp_path, {"some.log": output}).get(1, []) == []


def test_a_process_number_tells_the_rank_that_the_launcher_gave_it(tmp_path: Path) -> None:
    output = out.text(
        *out.traceback(ERROR, MAIN, prefix="(Worker pid=4003) "),
        out.failure_block((0, -15), first=(3, 1)),
    )

    assert "ValueError" in faults_by_rank(tmp_path, {"some.log": output})[3]


def test_an_error_that_nobody_signed_is_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    output = out.text(*out.traceback(ERROR, MAIN), out.failure_block((0, -15), (1, -15), first=(2, 1)))

    assert "ValueError" in faults_by_rank(tmp_path, {"some.log": output})[2]


def test_an_error_that_nobody_signed_is_of_the_only_rank_that_did_not_wait(tmp_path: Path) -> None:
    output = out.text(*out.traceback(ERROR, MAIN), *(out.watchdog(rank, 7) for rank in (0, 1, 3)))

    assert faults_by_rank(tmp_path, {"some.log": output})[2] == ["ValueError"]


def test_an_error_that_may_be_anybodys_is_nobodys(tmp_path: Path) -> None:
    output = out.text(*out.traceback(ERROR, MAIN), *(out.watchdog(rank, 7) for rank in (0, 3)))

    records = [record for each in imported(tmp_path, {"some.log": output}) for record in each.events]

    assert [record.where for record in records if isinstance(record, events.Fault)] == ["unsigned"]


def test_an_error_in_a_text_that_names_no_rank_is_nobodys(tmp_path: Path) -> None:
    (only,) = imported(tmp_path, {"some.log": out.text(*out.traceback(ERROR, MAIN))})

    assert [record.where for record in only.events if isinstance(record, events.Fault)] == ["unsigned"]


def test_what_follows_a_restart_is_of_the_next_attempt(tmp_path: Path) -> None:
    output = out.text(
        *out.traceback(ERROR, MAIN, rank=1),
        "Worker group FAILED. 2/3 attempts left; will restart worker group",
        *out.traceback("KeyError: 'a'", MAIN, rank=1),
    )

    found = {each.attempt: each.events for each in imported(tmp_path, {"some.log": output})}

    assert [record.type for record in found[0] if isinstance(record, events.Fault)] == ["ValueError"]
    assert [record.type for record in found[1] if isinstance(record, events.Fault)] == ["KeyError"]


def test_a_repeated_message_is_one_call(tmp_path: Path) -> None:
    line = out.watchdog(1, 7)
    output = out.text(
        line, line.replace("Watchdog", "Process group watchdog thread terminated: Watchdog"), out.watchdog(0, 7)
    )

    calls = [r for each in imported(tmp_path, {"a.log": output}) for r in each.events if isinstance(r, events.Call)]

    assert len(calls) == 2


def test_times_are_those_of_the_lines(tmp_path: Path) -> None:
    output = out.text(out.watchdog(0, 7, clock="18:40:00.5"), out.watchdog(1, 7, clock="18:40:03.5"))

    ends = [
        record.end_ns
        for each in imported(tmp_path, {"a.log": output})
        for record in each.events
        if isinstance(record, events.Done)
    ]

    assert round((ends[1] - ends[0]) / 1e9) == 3


def test_an_error_takes_the_moment_of_the_line_before_it(tmp_path: Path) -> None:
    output = out.text(
        "2025-12-06 18:30:00,000 INFO step 1",
        "no moment here",
        *out.traceback(ERROR, MAIN, rank=1),
        *(out.watchdog(rank, 7) for rank in (0, 2)),
    )

    found = imported(tmp_path, {"a.log": output})
    fault = next(r for each in found for r in each.events if isinstance(r, events.Fault))
    done = next(r for each in found for r in each.events if isinstance(r, events.Done))

    assert round((done.end_ns - fault.time_ns) / 60e9) == 10


def test_without_any_moment_causes_come_before_what_follows_from_them(tmp_path: Path) -> None:
    files = {
        "rank0.err": out.text(*out.failed_call("barrier", out.gloo_closed(), MAIN)),
        "rank1.err": out.text(*out.traceback(ERROR, MAIN)),
    }

    found = imported(tmp_path, files)
    fault = next(r for each in found for r in each.events if isinstance(r, events.Fault))
    done = next(r for each in found for r in each.events if isinstance(r, events.Done))

    assert fault.time_ns < done.end_ns


def test_that_no_moment_is_told_is_noted(tmp_path: Path) -> None:
    (tmp_path / "rank0.err").write_text(out.text(*out.traceback(ERROR, MAIN)))

    notes = [note for each in stderr.read([tmp_path / "rank0.err"]) for note in each.notes]

    assert any("no moment stands in rank0.err" in note for note in notes)
