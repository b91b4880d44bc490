"""Foreign files beside own logs: own records stay what they are, and the others add what those cannot know."""

from pathlib import Path

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Report
from distdiag.importers import load
from tests import training_output as out
from tests.logs import WALL_NS, Logs

SITE = "/job/train.py:88 step"


def stuck_logs(missing: int | None = None, world: int = 3) -> Logs:
    """Ranks that issue three all_reduces; one of them does not come to the third, and has no end."""
    logs = Logs(world_size=world)
    for rank in logs:
        for _ in range(2):
            rank.all_reduce(SITE)
        if rank.rank != missing:
            call = rank.all_reduce(SITE, pending=True)
            rank.sleep(30).done(call, error="RuntimeError: Timed out waiting 30000ms for recv operation to complete")
    return logs


def report_of(tmp_path: Path, logs: Logs, **texts: str) -> Report:
    logs.write(tmp_path)
    for name, content in texts.items():
        (tmp_path / f"{name}.log").write_text(content)
    return diagnose(load(tmp_path))


def test_text_that_repeats_what_the_logs_know_changes_nothing(tmp_path: Path) -> None:
    output = out.text(
        *(
            line
            for rank in (0, 2)
            for line in out.failed_call("all_reduce", out.gloo_timeout(), ("train.py", 88, "step"), rank=rank)
        )
    )

    alone = report_of(tmp_path / "alone", stuck_logs(missing=1)).verdict
    beside = report_of(tmp_path / "beside", stuck_logs(missing=1), train=output).verdict

    assert (beside.name, beside.culprits, beside.site, beside.seq, beside.step) == (
        alone.name,
        alone.culprits,
        alone.site,
        alone.seq,
        alone.step,
    )


def test_what_a_launcher_saw_explains_a_log_that_just_ends(tmp_path: Path) -> None:
    output = out.text(out.failure_block((0, -15), (2, -15), first=(1, -9), moment="2023-11-14_22:13:21"))

    verdict = report_of(tmp_path, stuck_logs(missing=1), train=output).verdict

    assert verdict.name == "rank-died"
    assert verdict.culprits == (1,)
    assert verdict.cause == "killed"


def test_an_error_that_only_stderr_holds_is_the_root(tmp_path: Path) -> None:
    output = out.text(*out.traceback(out.out_of_memory(1), ("/job/train.py", 80, "forward"), rank=1))

    verdict = report_of(tmp_path, stuck_logs(missing=1), train=output).verdict

    assert verdict.name == "out-of-memory"
    assert verdict.culprits == (1,)
    assert verdict.site == "/job/train.py:80"


def test_stacks_beside_logs_are_shown(tmp_path: Path) -> None:
    logs = stuck_logs(missing=1)
    logs.write(tmp_path)
    (tmp_path / "rank1.txt").write_text('Thread 1 (idle): "MainThread"\n    read_shard (/job/data.py:3)\n')

    report = diagnose(load(tmp_path))

    assert report.verdict.culprits == (1,)
    assert [branch.function for branch in report.stacks] == ["read_shard"]


def test_own_logs_alone_are_not_touched_by_reading_them(tmp_path: Path) -> None:
    stuck_logs(missing=1).write(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    diagnose(load(tmp_path))

    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["README.md", "expected.json", "train.py", "config.yaml"])
def test_files_that_say_nothing_are_left_out(name: str, tmp_path: Path) -> None:
    logs = stuck_logs(missing=1)
    logs.write(tmp_path)
    (tmp_path / name).write_text('{"verdict": "rank-died", "signal": "SIGKILL"}\n')

    run = load(tmp_path)

    assert run.ranks == (0, 1, 2)
    assert run.faults.empty


def test_moments_of_text_lie_on_the_clock_of_the_logs(tmp_path: Path) -> None:
    logs = stuck_logs(missing=1)
    logs.write(tmp_path)
    stamp = "2023-11-14 22:13:25,000"  # five seconds after the job began
    (tmp_path / "train.log").write_text(
        out.text(f"{stamp} ERROR", *out.traceback("ValueError: x", ("a.py", 1, "f"), rank=1))
    )

    faults = load(tmp_path).faults

    (moment,) = faults[faults["type"] == "ValueError"]["time_ns"]
    assert abs(moment - WALL_NS - 5_000_000_000) < 1_000_000_000


def test_records_of_text_say_where_they_come_from(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(out.text(out.watchdog(0, 7), out.watchdog(1, 7)))

    headers = load(tmp_path).headers

    assert set(headers["source"]) == {"stderr"}
    assert events.SCHEMA in set(headers["schema"])
