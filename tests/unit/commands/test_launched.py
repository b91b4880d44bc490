"""What a program that runs below ``distdiag run`` starts: a rank runs below it too, and nothing else does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distdiag.commands.run import below
from distdiag.settings import Settings
from tests.ranks import surroundings

SETTINGS = Settings(directory=Path("/logs"), stall_after_seconds=30.0, max_bytes=1 << 20)
RANK = {"LOCAL_RANK": "1"}
RECORDED = ["-m", "distdiag", "run", "--dir", "/logs", "--stall-after", "30", "--max-bytes", "1048576"]


@pytest.mark.parametrize(
    ("program", "switches"),
    [
        (["train.py", "--lr", "1"], []),
        (["train.py", "-u"], ["-u"]),
        (["-m", "training", "-v"], ["-u", "-X", "dev"]),
    ],
)
def test_rank_that_is_a_program_of_python_runs_below_run(program: list[str], switches: list[str]) -> None:
    assert below([sys.executable, *switches, *program], RANK, SETTINGS) == [
        sys.executable,
        *switches,
        *RECORDED,
        *program,
    ]


def test_launcher_that_another_launcher_starts_runs_below_run() -> None:
    program = ["-m", "deepspeed.launcher.launch", "--master_port=29500", "train.py"]

    assert below([sys.executable, "-u", *program], None, SETTINGS) == [sys.executable, "-u", *RECORDED, *program]


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (["nvidia-smi", "-q"], RANK),
        (f"{sys.executable} train.py", RANK),
        ([sys.executable, "train.py"], None),
        ([sys.executable, "train.py"], {"PATH": "/bin"}),
        ([sys.executable, "-c", "pass"], RANK),
        ([sys.executable], RANK),
        ([sys.executable, "-m"], None),
        ([sys.executable, "-m", "http.server"], None),
        ([sys.executable, "-u", "-m", "distdiag", "run", "train.py"], RANK),
    ],
)
def test_what_is_no_rank_or_is_recorded_is_started_as_it_is(command: Any, environment: dict[str, str] | None) -> None:
    assert below(command, environment, SETTINGS) is command


def test_helper_that_inherits_the_rank_of_its_parent_is_started_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    command = [sys.executable, "convert.py"]

    assert below(command, RANK, SETTINGS) is command


STARTS_ANOTHER = """
import os, subprocess, sys
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "another"], env={**os.environ, "LOCAL_RANK": "5"}, check=True)
else:
    import distdiag
    print(distdiag.is_recording())
"""


@pytest.mark.parametrize(("rank", "recorded"), [({}, "True"), ({"RANK": "0", "WORLD_SIZE": "2"}, "False")])
def test_a_launcher_starts_ranks_and_a_rank_starts_another_world(
    tmp_path: Path, rank: dict[str, str], recorded: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(STARTS_ANOTHER)
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}

    ended = subprocess.run(
        [sys.executable, "-m", "distdiag", "run", str(script)],
        env={**environment, **surroundings(tmp_path), **rank},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ended.stdout.strip() == recorded, ended.stderr
