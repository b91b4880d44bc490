"""Starts small processes that load a checkpoint together, and gathers what they saw."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from distdiag.checkpoints import Trial, Verification
from distdiag.checkpoints.plan import Plan, plan_of
from distdiag.errors import DistdiagError

POLL_SECONDS = 0.05
LAST_LINES = 3


def drill(directory: Path, worlds: Sequence[int], found: Verification, *, timeout_seconds: float) -> tuple[Trial, ...]:
    """Load a whole checkpoint once at each size of the world.

    Raises ``DistdiagError`` where torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise DistdiagError(
            "torch is not installed here, and a drill loads the checkpoint with it",
            "pip install 'distdiag[torch]'; distdiag checkpoint verify needs none",
        )
    plan = plan_of(directory)
    basis = "save" if found.facts.hashed == "all" else "file"
    return tuple(_trial(plan, world, basis, timeout_seconds) for world in dict.fromkeys(worlds))


def _trial(plan: Plan, world: int, basis: str, timeout_seconds: float) -> Trial:
    with tempfile.TemporaryDirectory(prefix="distdiag-drill-") as name:
        folder = Path(name)
        (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
        processes = [_start(folder, rank, world) for rank in range(world)]
        _wait(processes, time.monotonic() + timeout_seconds)
        error = _error(folder, processes, timeout_seconds)
        if error:
            return Trial(world_size=world, error=error)
        told = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    wrong = told[0]["wrong"]
    return Trial(
        world_size=world,
        seconds=max(each["seconds"] for each in told),
        peak_bytes=max(each["peak_bytes"] for each in told),
        grown_bytes=max(each["grown_bytes"] for each in told),
        tensors=len(plan.tensors),
        chunks=told[0]["compared"],
        basis=basis,
        left_out=tuple(plan.left_out),
        error=f"{wrong[0]} is not what was saved, the first of {len(wrong)} chunks" if wrong else "",
    )


def _start(folder: Path, rank: int, world: int) -> "subprocess.Popen[bytes]":
    threads = max(1, (os.cpu_count() or 1) // world)
    own = {"DISTDIAG": "off", "OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    with (folder / f"{rank}.err").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "distdiag.commands._drill_rank", str(folder), str(rank), str(world)],
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
        )


def _wait(processes: "Sequence[subprocess.Popen[bytes]]", deadline: float) -> None:
    """Wait until all have ended, one has failed or time is up; then end whatever is left."""
    try:
        while time.monotonic() < deadline:
            codes = [process.poll() for process in processes]
            if None not in codes or any(codes):
                break
            time.sleep(POLL_SECONDS)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _error(folder: Path, processes: "Sequence[subprocess.Popen[bytes]]", timeout_seconds: float) -> str:
    failed = [rank for rank, process in enumerate(processes) if process.returncode > 0]
    failed = failed or [rank for rank, process in enumerate(processes) if process.returncode]
    if not failed:
        return ""
    lines = (folder / f"{failed[0]}.err").read_text(errors="replace").strip().splitlines()
    said = "; ".join(line.strip() for line in lines[-LAST_LINES:])
    code = processes[failed[0]].returncode
    if code == -signal.SIGKILL and not said:
        return f"it was not done after {timeout_seconds:g} s, or a rank was killed for memory"
    return f"rank {failed[0]} failed: {said or f'exit code {code}'}"
