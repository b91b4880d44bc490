"""A run in a notebook."""

import subprocess
import sys
from pathlib import Path

import pytest

import distdiag
from distdiag.errors import DistdiagError
from tests.logs import Logs


def trained() -> Logs:
    logs = Logs(world_size=2)
    for step in range(8):
        for rank in logs:
            rank.step = step
            rank.all_reduce("train.py:10 step")
            rank.end_step()
    for rank in logs:
        rank.exit()
    return logs


def test_frames_tables_and_findings(tmp_path: Path) -> None:
    loaded = distdiag.load(trained().write(tmp_path))

    assert loaded.ranks == (0, 1)
    assert {"calls", "steps", "memory", "faults"} <= set(loaded.frames)
    assert len(loaded["calls"]) == 16
    assert len(loaded.run.engine.frame(loaded.table("call"))) == 16
    assert list(loaded.findings()["name"]) == [finding.name for finding in loaded.report.findings]
    assert set(loaded.ledger()["rank"]) == {0, 1}
    assert repr(loaded).startswith("HEALTHY")


def test_a_frame_that_is_not_there_says_which_are(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match=r"there are .*calls"):
        distdiag.load(trained().write(tmp_path))["call"]


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(DistdiagError):
        distdiag.load(tmp_path)


def test_naming_it_loads_nothing() -> None:
    code = "import sys, distdiag; distdiag.load; sys.exit('pandas' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], timeout=150, check=False).returncode == 0
