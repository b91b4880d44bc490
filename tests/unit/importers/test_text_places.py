"""Output as it lies on disks: in folders of ranks, in other encodings, with few moments."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.importers import load
from tests import training_output as out

LOSS = ("/workspace/train.py", 88, "train_step")


def output_of(rank: int) -> str:
    """Return what a rank of an old version prints, which names its rank in no line; rank 2 ran out of memory."""
    step = f"2025-12-06 18:29:5{8 + (rank == 2)},000 INFO step 15733"
    if rank == 2:
        return out.text(step, *out.traceback(out.out_of_memory(0), LOSS))
    return out.text(step, out.old_watchdog(0))


@pytest.mark.parametrize(
    "name",
    [
        "rank{}.log",
        "rank_{}/stderr.txt",
        "{}/error.txt",
        "run-2025/worker-{}/files/output.log",
        "none_ab/attempt_0/{}/stderr.log",
    ],
)
def test_ranks_are_told_by_names_and_folders(name: str, tmp_path: Path) -> None:
    for rank in range(4):
        file = tmp_path / name.format(rank)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(output_of(rank))

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits) == ("out-of-memory", (2,))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "latin-1"])
def test_other_encodings_are_read(encoding: str, tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_bytes(("époque 1\r\n" + output_of(rank)).encode(encoding))

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits, verdict.site) == ("out-of-memory", (2,), "/workspace/train.py:88")


def test_a_wait_without_a_moment_of_its_own_ended_after_it_had_lasted(tmp_path: Path) -> None:
    """The last line before it is from when it began: what another rank printed meanwhile was before its end."""
    (tmp_path / "rank0.log").write_text(out.text("2025-12-06 18:00:00,000 INFO step 7", out.old_watchdog(0, seq=9)))
    (tmp_path / "rank1.log").write_text(
        out.text("2025-12-06 18:00:05,000 INFO step 7", *out.traceback("ValueError: bad sample", LOSS))
    )

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits) == ("rank-died", (1,))


def test_a_wait_did_not_end_after_the_next_moment_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(
        out.text(
            "2025-12-06 18:00:00,000 INFO step 7",
            out.old_watchdog(0, seq=9),
            *out.traceback("ValueError: while leaving", LOSS, rank=0),
            "2025-12-06 18:00:30,000 E1206 18:00:30.1 4711 torch/elastic/api.py:833] failed (exitcode: 1) "
            "local_rank: 0 (pid: 8) of binary: python",
        )
    )

    end_ns = int(load(tmp_path).calls["end_ns"].iloc[0])

    assert end_ns % 3_600_000_000_000 < 31_000_000_000


def test_of_several_jobs_in_a_folder_the_newest_is_read(tmp_path: Path) -> None:
    (tmp_path / "slurm-1001.out").write_text(out.text(*out.traceback(out.out_of_memory(2), LOSS, rank=2)))
    (tmp_path / "slurm-1002.out").write_text(out.text(*(out.watchdog(rank, 9) for rank in (0, 2, 3))))

    run = load(tmp_path)
    verdict = diagnose(run).verdict

    assert (verdict.name, verdict.culprits) == ("rank-missing", (1,))
    assert "output of job 1002 is read; job 1001 had the same ranks before" in run.quality.notes


def test_files_of_one_job_are_read_together(tmp_path: Path) -> None:
    (tmp_path / "slurm-1001_0.err").write_text(out.text(*(out.watchdog(rank, 9) for rank in (0, 1))))
    (tmp_path / "slurm-1001_1.err").write_text(out.text(*out.traceback(out.out_of_memory(0), LOSS, rank=2)))
    (tmp_path / "slurm-1001.out").write_text(out.text(out.watchdog(3, 9)))

    assert diagnose(load(tmp_path)).verdict.culprits == (2,)
