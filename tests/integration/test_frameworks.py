"""Trainers that everybody uses, unmodified: every collective is recorded, steps are right, faults are diagnosed."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Report
from distdiag.importers import load
from distdiag.run import Run
from tests.ranks import free_port

ROOT = Path(__file__).parents[2]
RANKS = 2
STEPS = 6
CAP_SECONDS = 240.0
"""Some of the frameworks take half a minute to be imported on a loaded machine."""
STALL_AFTER_SECONDS = 4.0
LOOK_SECONDS = 1.0
UNCOUNTED = frozenset({"send", "recv", "recv_any_source"})
"""torch's flight recorder does not see them on gloo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A program, the package it needs beside torch, and how many micro-batches make a step."""

    module: str
    arguments: Sequence[str] = ()
    needs: str = "torch"
    micro_batches: int = 1
    loads: bool = True
    """Whether one rank can be made to wait for its samples."""

    def __str__(self) -> str:
        return "-".join((self.module, *self.arguments))


FRAMEWORKS = (
    *(
        Framework(module="torch_parallel", arguments=(way,), loads=way in ("ddp", "fsdp2", "zero"))
        for way in ("ddp", "compiled", "fsdp2", "tensor", "zero")
    ),
    Framework(module="torch_parallel", arguments=("pipeline",), micro_batches=4, loads=False),
    Framework(module="transformers_trainer", needs="transformers", micro_batches=2),
    Framework(module="accelerate_loop", needs="accelerate", micro_batches=2),
    Framework(module="lightning_trainer", needs="lightning"),
    Framework(module="lightning_fabric", needs="lightning"),
    Framework(module="deepspeed_zero", arguments=("1",), needs="deepspeed"),
    Framework(module="deepspeed_zero", arguments=("3",), needs="deepspeed"),
)


def start(framework: Framework, directory: Path, **variables: str) -> subprocess.Popen[bytes]:
    if importlib.util.find_spec(framework.needs) is None:
        pytest.skip(f"{framework.needs} is not installed")
    environment = os.environ | {
        "DISTDIAG_DIR": str(directory / "logs"),
        "DISTDIAG_STALL_AFTER": str(STALL_AFTER_SECONDS),
        "TORCH_FR_BUFFER_SIZE": "20000",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        **variables,
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    launcher += ["--master-port", str(free_port()), "-m", "tests.frameworks.counted"]
    with (directory / "output").open("wb") as output:
        return subprocess.Popen(
            [*launcher, f"tests.frameworks.{framework.module}", *framework.arguments],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(job: subprocess.Popen[bytes]) -> None:
    """End the launcher with its ranks, which have sessions of their own."""
    if job.poll() is None:
        launcher = psutil.Process(job.pid)
        for process in (launcher, *launcher.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    job.wait()


def output(directory: Path) -> str:
    return (directory / "output").read_text(errors="replace")[-4000:]


def counts(run: Run, rank: int) -> dict[str, int]:
    ops = run.calls[run.calls["rank"] == rank]["op"].astype(str).value_counts()
    return {str(op): int(count) for op, count in ops.items() if op not in UNCOUNTED}


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=str)
def test_every_collective_and_every_step_is_recorded(framework: Framework, tmp_path: Path) -> None:
    job = start(framework, tmp_path)
    try:
        code = job.wait(CAP_SECONDS)
    finally:
        end(job)
    assert code == 0, output(tmp_path)

    run = load(tmp_path / "logs")

    for rank in range(RANKS):
        counted = json.loads((tmp_path / "logs" / f"counted{rank}.json").read_text())
        assert sum(counts(run, rank).values()) == sum(counted.values()), (counts(run, rank), counted)
        steps = run.steps[run.steps["rank"] == rank]
        assert len(steps) == STEPS
        assert set(steps["backwards"]) == {framework.micro_batches}
    assert diagnose(run).verdict.name == "healthy"


@pytest.mark.parametrize("framework", [each for each in FRAMEWORKS if each.loads], ids=str)
def test_a_rank_whose_samples_do_not_come_is_found(framework: Framework, tmp_path: Path) -> None:
    job = start(framework, tmp_path, STALL_RANK="1")
    try:
        report = _once_stuck(job, tmp_path)
    finally:
        end(job)

    verdict = report.verdict
    assert (verdict.name, verdict.culprits, verdict.cause) == ("rank-missing", (1,), "data-loading"), verdict
    assert (verdict.site or "").startswith(str(ROOT / "tests" / "frameworks" / "stalling.py"))


def _once_stuck(job: subprocess.Popen[bytes], directory: Path) -> Report:
    """Return the report as soon as both ranks have written their stacks, and the one that it is about in its loader."""
    deadline = time.monotonic() + CAP_SECONDS
    while time.monotonic() < deadline:
        assert job.poll() is None, output(directory)
        stacks = [_stacks(directory / "logs" / f"rank{rank:05d}.jsonl") for rank in range(RANKS)]
        if stacks[0] and any(b"wait_for_storage" in stack for stack in stacks[1]):
            return diagnose(load(directory / "logs"))
        time.sleep(LOOK_SECONDS)
    raise AssertionError(f"no stall within {CAP_SECONDS:.0f} s: {output(directory)}")


def _stacks(log: Path) -> list[bytes]:
    """Return the stacks in a log that were taken after the first call."""
    if not log.exists():
        return []
    _, _, training = log.read_bytes().partition(b'"kind":"call"')
    return [line for line in training.splitlines() if b'"kind":"stack"' in line]
