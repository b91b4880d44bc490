"""What is said of a job that still runs: that it does, and who holds it up once it stands still."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.run import load
from tests.nursery import Order, Rank, shared_nursery
from tests.ranks import CAP_SECONDS, free_port, launcher_variables, surroundings

SCRIPT = Path(__file__).parents[1] / "faults" / "controls.py"
WORLD = 2


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Rank]]:
    port = free_port()
    started = [
        shared_nursery().start(
            Order(
                script=SCRIPT,
                arguments=["goes_on"],
                variables={**surroundings(tmp_path), **launcher_variables(rank, WORLD, port), "PG_TIMEOUT": "60"},
                directory=tmp_path,
                stdout=tmp_path / f"{rank}.out",
                stderr=tmp_path / f"{rank}.err",
            )
        )
        for rank in range(WORLD)
    ]
    yield started
    for rank in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()


def verdict_once(directory: Path, wanted: str) -> Verdict:
    """Return the first verdict that says something, as logs come to hold it."""
    deadline = time.monotonic() + CAP_SECONDS
    while True:
        verdict = diagnose(load(directory)).verdict if list(directory.glob("*.jsonl")) else None
        if verdict is not None and (wanted in verdict.summary or time.monotonic() > deadline):
            return verdict
        time.sleep(0.5)


def test_a_job_that_trains_is_running_and_one_that_stands_still_is_not(ranks: list[Rank], tmp_path: Path) -> None:
    training = verdict_once(tmp_path / "logs", "ranks 0-1 are running, step")
    os.kill(ranks[1].pid, signal.SIGSTOP)
    standing = verdict_once(tmp_path / "logs", "never entered")

    assert training.name == "healthy"
    assert "nothing is stuck" in training.summary
    assert (standing.name, standing.culprits, standing.cause) == ("rank-missing", (1,), "frozen")
