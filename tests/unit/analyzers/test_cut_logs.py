"""Logs of which only the beginning is left: nobody is accused of what may have been in the rest."""

from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Confidence
from distdiag.run import load
from tests.stuck import CLOSED, STEP, fail, trained


def cut(file: Path) -> None:
    """Leave the first half of a log, as where it was copied while a disk was full."""
    written = file.read_bytes()
    file.write_bytes(written[: len(written) // 2].rpartition(b"\n")[0] + b'\n{"kind":"do')


def test_a_rank_whose_log_was_cut_is_not_accused_of_what_is_not_in_it(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs.only(0, 1, 3):
        fail(rank, rank.all_reduce(STEP, pending=True))
    logs[2].pulses("lock.py:3 acquire", seconds=30)
    cut(logs.write(tmp_path) / "rank00001.jsonl")

    found = diagnose(load(tmp_path)).verdict

    assert (found.name, found.culprits, found.confidence) == ("rank-missing", (2,), Confidence.MEDIUM)
    assert "the log of rank 1 is cut within a record" in found.evidence
    assert found.evidence[-1].startswith("3 of 4 logs whole")


def test_that_the_log_of_the_one_that_is_waited_for_was_cut_is_said(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs.only(0, 1):
        fail(rank, rank.all_reduce(STEP, pending=True))
    logs[2].pulses("lock.py:3 acquire", seconds=30)
    cut(logs.write(tmp_path) / "rank00002.jsonl")

    found = diagnose(load(tmp_path)).verdict

    assert (found.name, found.culprits) == ("insufficient-evidence", ())
    assert "of rank 2 only the beginning of its log is here" in found.summary


def test_a_rank_whose_log_was_cut_was_not_killed_with_those_that_were(tmp_path: Path) -> None:
    logs = trained(4)
    for rank in logs.only(0, 1, 3):
        fail(rank, rank.all_reduce(STEP, pending=True), error=CLOSED, seconds=1.0)
    cut(logs.write(tmp_path) / "rank00001.jsonl")

    found = diagnose(load(tmp_path)).verdict

    assert (found.name, found.culprits, found.cause) == ("rank-died", (2,), "killed")
