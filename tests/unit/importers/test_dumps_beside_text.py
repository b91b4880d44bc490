"""Dumps of the flight recorder beside what processes printed and stacks that somebody took of them."""

import os
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.importers import load
from tests import training_output as out
from tests.dumps import START_NS, Dumps

SECOND_NS = 1_000_000_000
LOADER = ["__next__ (torch/utils/data/dataloader.py:600)", "main (/app/train.py:30)"]
SAVE = ["save (torch/serialization.py:600)", "keep (/app/train.py:66)", "main (/app/train.py:31)"]
READ = ["read_shard (/app/data.py:12)", "main (/app/train.py:30)"]


def written(directory: Path, name: str, *lines: str, seconds: int = 601) -> None:
    """Write a file beside the dumps that was last changed so long after they begin."""
    moment = START_NS + seconds * SECOND_NS
    (directory / name).write_text("\n".join(lines) + "\n")
    os.utime(directory / name, ns=(moment, moment))


def missing_one(directory: Path, missing: int | None = 2) -> Path:
    """Write dumps of four ranks, of which one never came to a collective that the others gave up."""
    dumps = Dumps(4)
    dumps.everywhere("all_reduce")
    for rank in dumps.ranks:
        if rank != missing:
            dumps.add(rank, "all_reduce", state="started", retired=True)
    return dumps.write(directory)


def py_spy(frames: list[str]) -> list[str]:
    return [
        "Process 71: python train.py",
        "Python v3.11.4",
        "",
        'Thread 71 (idle): "MainThread"',
        *(f"    {f}" for f in frames),
    ]


def told(directory: Path) -> Verdict:
    return diagnose(load(directory)).verdict


@pytest.mark.parametrize(
    ("frames", "cause", "site", "seconds"),
    [
        (LOADER, "data-loading", "/app/train.py:30", 300),
        (SAVE, "checkpoint", "/app/train.py:66", 601),
        (READ, "running", "/app/data.py:12", 90_000),
    ],
)
def test_a_stack_says_where_a_rank_was_that_did_not_come(
    frames: list[str], cause: str, site: str, seconds: int, tmp_path: Path
) -> None:
    written(missing_one(tmp_path), "pyspy_rank2.txt", *py_spy(frames), seconds=seconds)

    verdict = told(tmp_path)

    assert (verdict.name, verdict.culprits, verdict.cause, verdict.site) == ("rank-missing", (2,), cause, site)
    assert f" for {seconds}" not in verdict.summary  # one look does not tell since when


def test_a_stack_of_a_rank_that_waits_accuses_it_of_nothing(tmp_path: Path) -> None:
    written(missing_one(tmp_path), "pyspy_rank0.txt", *py_spy(LOADER))

    verdict = told(tmp_path)

    assert (verdict.name, verdict.culprits) == ("rank-missing", (2,))


def test_a_remark_of_nobody_leaves_the_dumps_of_the_first_rank_what_they_are(tmp_path: Path) -> None:
    written(missing_one(tmp_path, missing=None), "dmesg.txt", "[1.1] NVRM: Xid (PCI:0000:4a:00): 79, pid=103, lost.")

    verdict = told(tmp_path)

    assert verdict.name == "transport-stuck"
    assert "Xid 79" in " ".join(verdict.evidence)
    assert "4 of 4 ranks" in " ".join(verdict.evidence)


def test_an_error_that_nobody_signed_keeps_who_is_waited_for(tmp_path: Path) -> None:
    failed = out.traceback("KeyError: 'labels'", ("/app/train.py", 3, "main"))
    written(missing_one(tmp_path), "train.log", *failed, seconds=1)

    verdict = told(tmp_path)

    assert (verdict.name, verdict.culprits, verdict.site) == ("rank-died", (), "/app/train.py:3")
    assert "the others wait for rank 2, which may be that one" in verdict.evidence


@pytest.mark.parametrize("name", ["README.md", "train.py", "notes/run.sh"])
def test_what_quotes_an_error_is_no_output(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    written(missing_one(tmp_path), name, f"# {out.out_of_memory()}")

    verdict = told(tmp_path)

    assert (verdict.name, verdict.culprits) == ("rank-missing", (2,))
    assert told(tmp_path / name).name == "out-of-memory"  # somebody asks for it


def test_an_error_without_a_rank_accuses_nobody_in_words_either(tmp_path: Path) -> None:
    written(missing_one(tmp_path), "train.log", out.out_of_memory(), seconds=1)

    verdict = told(tmp_path)

    assert (verdict.name, verdict.culprits) == ("out-of-memory", ())
    assert "Which rank it is does not stand beside it" in verdict.summary
    assert "no rank" not in " ".join(verdict.next_steps)


def test_stacks_are_not_late_by_the_age_of_their_files(tmp_path: Path) -> None:
    wait = ["all_reduce (torch/distributed/distributed_c10d.py:2501)", "step (/app/train.py:40)"]
    for rank in (0, 1, 2):
        written(tmp_path, f"pyspy_{rank}.txt", *py_spy(wait if rank else SAVE), seconds=10 + rank)

    verdict = told(tmp_path)

    assert (verdict.name, verdict.culprits, verdict.cause) == ("rank-missing", (0,), "checkpoint")
