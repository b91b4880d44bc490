"""The demo: real processes go wrong on this machine, within a cap, and are explained."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from io import BufferedWriter
from pathlib import Path
from types import SimpleNamespace

import pytest

from distdiag.commands import _job
from distdiag.commands.scenarios import SCENARIOS
from tests.commandline import distdiag
from tests.nursery import Order, Rank, shared_nursery

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
AS_USERS_START_IT = "data-loader-stuck"
"""Its ranks are interpreters of their own; those of the others are forked, which spares importing torch in each."""
COMMAND = """
import runpy, sys, torch
torch.seed()  # as each new interpreter draws its own
sys.argv[0:2] = []
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def demo(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distdiag", "demo", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=CAP_SECONDS,
    )


@pytest.fixture
def forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands start the ranks of their job by a fork."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)

    def start(
        command: Sequence[str], *, env: Mapping[str, str], stdout: BufferedWriter, stderr: BufferedWriter
    ) -> Rank:
        _python, *arguments = command
        files = {"stdout": Path(stdout.name), "stderr": Path(stderr.name)}
        return shared_nursery().start(
            Order(script=script, arguments=arguments, variables=env, directory=Path.cwd(), **files)
        )

    monkeypatch.setattr(_job, "subprocess", SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired))


def assert_explained(scenario: str, done: subprocess.CompletedProcess[str], logs: Path) -> None:
    output = (logs / "output.txt").read_text()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(FIRST_WORDS[scenario]), done.stdout + output
    assert re.search(r"^ +\d+\.\d s   rank.*: step \d+", done.stderr, flags=re.MULTILINE), done.stderr + output


def test_scenario_that_a_user_starts_goes_wrong_and_is_explained(tmp_path: Path) -> None:
    done = demo(AS_USERS_START_IT, "--logs", str(tmp_path))

    assert_explained(AS_USERS_START_IT, done, tmp_path)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each != AS_USERS_START_IT])
def test_scenario_goes_wrong_and_is_explained(scenario: str, tmp_path: Path) -> None:
    done = distdiag("demo", scenario, "--logs", tmp_path / "logs")

    assert_explained(scenario, done, tmp_path / "logs")


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
