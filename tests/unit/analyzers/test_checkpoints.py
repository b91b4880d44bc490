"""Checkpoints in the logs of a run: what was saved whole, what was not, and what nobody verified."""

import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.checkpoints import stamp, verify
from distdiag.findings import Report, Severity
from distdiag.run import saved
from tests.logs import Logs, RankLog
from tests.recordings import lonely_world

dcp: Any = torch.distributed.checkpoint
SAVE, UPLOAD = "checkpoint save", "checkpoint upload"


def begin(rank: RankLog, directory: Path | str, phase: str = SAVE) -> int:
    return rank.begin_phase(phase, format="sharded", directory=str(directory))


def end(rank: RankLog, number: int, directory: Path | str, *, phase: str = SAVE, failed: bool = False) -> None:
    rank.sleep(1.0).add(
        events.Phase(
            phase=phase,
            edge="end",
            number=number,
            time_ns=rank.now_ns,
            step=rank.step,
            format="sharded",
            directory=str(directory),
            failed=failed,
        )
    )


def trained(directory: Path | str, phase: str = SAVE) -> Logs:
    """Two ranks that trained, saved and ended."""
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce("train.py:9 main")
        rank.end_step()
        end(rank, begin(rank, directory, phase), directory, phase=phase)
        rank.exit()
    return logs


def written(directory: Path) -> Path:
    """Write a checkpoint."""
    with warnings.catch_warnings(), lonely_world():
        warnings.simplefilter("ignore")
        dcp.save({"weight": torch.arange(100_000.0)}, checkpoint_id=directory)
    return directory


def names(report: Report) -> list[str]:
    return [finding.name for finding in report.findings]


def test_save_that_ended_is_no_finding(tmp_path: Path) -> None:
    report = diagnose(trained("/not/here").load(tmp_path))

    assert (report.verdict.name, names(report)) == ("healthy", [])


def test_rank_that_ended_within_its_save_left_an_incomplete_checkpoint(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        number = begin(rank, "/ckpt/step-200", UPLOAD)
        if rank.rank == 0:
            end(rank, number, "/ckpt/step-200", phase=UPLOAD)
        rank.exit()

    report = diagnose(logs.load(tmp_path))

    assert report.verdict.name == "checkpoint-incomplete"
    assert report.verdict.culprits == (1,)
    assert report.verdict.summary == (
        "checkpoint /ckpt/step-200 is not whole: rank 1 began to save it in step 0, and ended before its save did"
    )


def test_save_that_may_still_go_on_is_no_finding(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        begin(rank, "/ckpt/step-200")
        rank.pulses("train.py:9 main", seconds=30.0)

    assert "checkpoint-incomplete" not in names(diagnose(logs.load(tmp_path)))


def test_save_that_failed_is_reported_though_the_run_went_on(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        end(rank, begin(rank, "/ckpt/step-200"), "/ckpt/step-200", failed=True)
        rank.end_step()
        rank.exit()

    (finding,) = diagnose(logs.load(tmp_path)).findings

    assert (finding.name, finding.severity) == ("checkpoint-incomplete", Severity.WARNING)
    assert "ranks 0-1 began to save it in step 0, and their save failed" in finding.summary


def test_save_that_was_repeated_with_success_is_no_finding(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        end(rank, begin(rank, "/ckpt/last"), "/ckpt/last", failed=True)
        end(rank, begin(rank, "/ckpt/last"), "/ckpt/last")
        rank.exit()

    assert names(diagnose(logs.load(tmp_path))) == []


def test_newest_checkpoint_that_nobody_verified_is_said_and_is_no_verdict(tmp_path: Path) -> None:
    directory = written(tmp_path / "step-1")

    report = diagnose(trained(directory).load(tmp_path / "logs"))

    assert (report.verdict.name, names(report)) == ("healthy", ["checkpoint-unverified"])
    assert report.findings[0].action == (f"run distdiag checkpoint verify {directory}",)


def test_verified_checkpoint_is_no_finding(tmp_path: Path) -> None:
    directory = written(tmp_path / "step-1")
    assert stamp(directory, verify(directory))

    assert names(diagnose(trained(directory).load(tmp_path / "logs"))) == []


def test_verification_of_what_was_overwritten_since_does_not_count(tmp_path: Path) -> None:
    directory = written(tmp_path / "step-1")
    stamp(directory, verify(directory))
    written(directory)

    assert names(diagnose(trained(directory).load(tmp_path / "logs"))) == ["checkpoint-unverified"]


@pytest.mark.parametrize(("name", "shard"), [("checkpoint-corrupt", True), ("checkpoint-incomplete", False)])
def test_what_verification_found_is_the_verdict(name: str, shard: bool, tmp_path: Path) -> None:
    directory = written(tmp_path / "step-1")
    path = directory / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:200_000] + bytes(100) + path.read_bytes()[200_100:] if shard else b"")
    stamp(directory, verify(directory))

    verdict = diagnose(trained(directory).load(tmp_path / "logs")).verdict

    assert verdict.name == name
    assert verdict.summary.startswith(f"checkpoint {directory}, saved in step 1, is damaged\n__0_0.distcp")
    assert any("distdiag checkpoint verify" in step for step in verdict.next_steps)


def test_file_system_that_hangs_does_not_keep_logs_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = written(tmp_path / "step-1")
    monkeypatch.setattr(saved, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr("distdiag.run.saved.records.read_stamp", lambda _: time.sleep(2.0))

    run = trained(directory).load(tmp_path / "logs")

    assert run.checkpoints["visible"].tolist() == [False]
    assert names(diagnose(run)) == []
