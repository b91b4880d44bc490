"""Ordinary lines tell who there is: a rank that goes on printing is there, though it gave up nothing."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.importers import load
from tests import training_output as out


def waiting(*ranks: int) -> list[str]:
    return [out.watchdog(rank, 41) for rank in ranks]


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]: evaluation is done, 800 batches",
        "using world size: 4, data-parallel size: 4",
        "Distributed environment: MULTI_GPU  Backend: nccl Num processes: 4 Process index: 0",
        "Initializing distributed: GLOBAL_RANK: 2, MEMBER: 3/4",
        "launching with world_size=4",
    ],
)
def test_a_rank_of_which_only_ordinary_lines_tell_is_the_one_that_did_not_come(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(out.text(line, *waiting(0, 1, 2)))

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits, verdict.victims) == ("rank-missing", (3,), (0, 1, 2))


def test_the_size_of_a_smaller_group_is_not_that_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(out.text("tensor parallel world_size=2", *waiting(0, 1, 2, 3)))

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.culprits, verdict.victims) == ((), (0, 1, 2, 3))
