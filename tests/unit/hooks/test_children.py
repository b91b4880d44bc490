"""Processes that multiprocessing starts: those of a program record as it does, helpers of a rank do not."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import ROOT, surroundings

CAP_SECONDS = 60.0
PROGRAM = """
import multiprocessing as mp, os, sys
import distdiag
distdiag.install()

def task(said):
    said.put(distdiag.is_recording())

class Task(mp.get_context("spawn").Process):
    def __init__(self, said):
        super().__init__()
        self.said = said
    def run(self):
        task(self.said)

if __name__ == "__main__":
    context = mp.get_context("spawn")
    said = context.SimpleQueue()
    if sys.argv[1] == "class":
        child = Task(said)
    else:
        child = context.Process(target=task, args=(said,), daemon=sys.argv[1] == "daemon")
    child.start()
    print(said.get(), sorted(name for name in vars(child) if "distdiag" in name), "DISTDIAG_HELPER_OF" in os.environ)
    child.join()
    assert child.exitcode == 0
"""
RECORDED, NOT_RECORDED = "True [] False", "False [] False"


def ran(directory: Path, way: str, **variables: str) -> tuple[str, list[dict[str, Any]]]:
    """Run the program; return what it printed, and the first records of all logs."""
    script = directory / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    ended = subprocess.run(
        [sys.executable, str(script), way],
        env={**environment, **surroundings(directory), "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=CAP_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    logs = sorted((directory / "logs").glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return ended.stdout.strip(), [json.loads(path.read_text().splitlines()[0]) for path in logs]


@pytest.mark.parametrize("way", ["function", "class"])
def test_process_of_a_program_records_and_says_who_started_it(tmp_path: Path, way: str) -> None:
    said, headers = ran(tmp_path, way)

    assert said == RECORDED
    assert len(headers) == 2
    program = next(header for header in headers if "started_by" not in header)
    assert [header["started_by"] for header in headers if header is not program] == [program["pid"]]


def test_helper_leaves_no_log_though_it_imports_the_script(tmp_path: Path) -> None:
    said, headers = ran(tmp_path, "daemon")

    assert (said, len(headers)) == (NOT_RECORDED, 1)


def test_what_a_rank_starts_is_a_helper(tmp_path: Path) -> None:
    said, headers = ran(tmp_path, "function", RANK="3", WORLD_SIZE="4")

    assert (said, [header["rank"] for header in headers]) == (NOT_RECORDED, [3])


def test_task_of_a_scheduler_starts_ranks_that_do_not_take_its_number(tmp_path: Path) -> None:
    said, headers = ran(tmp_path, "function", SLURM_PROCID="1", SLURM_NTASKS="2")

    assert said == RECORDED
    told = [(header.get("rank"), header.get("rank_from"), "started_by" in header) for header in headers]
    assert sorted(told, key=str) == [(1, "SLURM_PROCID", False), (None, None, True)]
