"""The demo: real processes go wrong on this machine, within a cap, and are explained."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from distdiag.commands.scenarios import SCENARIOS

CAP_SECONDS = 240
"""Four processes import torch on a machine that may be busy; the demo ends them by itself long before."""

FIRST_WORDS = {
    "data-loader-stuck": "STUCK  rank 2 ",
    "rank-guarded-collective": "DIVERGED  rank 0 ",
    "out-of-memory": "OUT OF MEMORY  rank 1 ",
    "shape-mismatch": "DIVERGED  rank 3 ",
    "bad-sample": "SILENTLY WRONG  the loss of rank 2 ",
    "healthy": "HEALTHY  ",
}


def demo(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distdiag", "demo", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=CAP_SECONDS,
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_goes_wrong_and_is_explained(scenario: str, tmp_path: Path) -> None:
    done = demo(scenario, "--logs", str(tmp_path / "logs"))

    output = (tmp_path / "logs" / "output.txt").read_text()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(FIRST_WORDS[scenario]), done.stdout + output
    assert re.search(r"^ +\d+\.\d s   rank.*: step \d+", done.stderr, flags=re.MULTILINE), done.stderr + output


def test_logs_of_another_run_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    (tmp_path / "rank00000.jsonl").write_text("{}")

    done = demo("healthy", "--logs", str(tmp_path))

    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        f"error: there are logs of another run in {tmp_path}",
        "hint: give a folder of its own with --logs",
    ]


def test_without_torch_the_demo_says_how_to_get_it(tmp_path: Path) -> None:
    code = (
        "import importlib.util, sys\n"
        "importlib.util.find_spec = lambda name: None\n"
        "sys.argv = ['distdiag', 'demo']\n"
        "from distdiag.cli import main\n"
        "main()"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=CAP_SECONDS)

    assert done.returncode == 2
    assert done.stderr.startswith("error: the demo trains a real model and needs torch\nhint: pip install ")
