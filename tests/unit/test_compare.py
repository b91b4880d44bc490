"""Two runs beside each other: slower only where it is more than noise."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from distdiag.commands.compare import command
from distdiag.errors import DistdiagError
from tests.logs import Logs


def job(seed: int, *, step_seconds: float, data_seconds: float = 0.01, noise: float = 0.02, steps: int = 80) -> Logs:
    """Return logs of a job whose steps take as long as that, give or take the noise."""
    rolls = random.Random(seed)
    logs = Logs(world_size=2)
    for step in range(steps):
        took = step_seconds * rolls.gauss(1, noise)
        for rank in logs:
            rank.step = step
            rank.all_reduce("train.py:10 step", seconds=0.002)
            rank.end_step(seconds=took, data_ns=round(data_seconds * 1e9))
    for rank in logs:
        rank.exit()
    return logs


def compare(tmp_path: Path, before: Logs, after: Logs, *options: str) -> Result:
    before.write(tmp_path / "before")
    after.write(tmp_path / "after")
    folders = [str(tmp_path / "before"), str(tmp_path / "after")]
    return CliRunner().invoke(command, [*folders, *options], standalone_mode=False)


def test_a_run_that_is_surely_slower_is_a_regression(tmp_path: Path) -> None:
    done = compare(tmp_path, job(1, step_seconds=0.1), job(2, step_seconds=0.11))

    assert done.return_value == 1
    assert done.output.startswith("SLOWER  a step takes")


def test_noise_is_no_regression(tmp_path: Path) -> None:
    verdicts = [
        compare(tmp_path / str(seed), job(seed, step_seconds=0.1), job(seed + 100, step_seconds=0.1)).return_value
        for seed in range(5)
    ]

    assert verdicts == [0] * 5


def test_a_difference_below_the_limit_is_none(tmp_path: Path) -> None:
    runs = job(1, step_seconds=0.1, noise=0.001), job(2, step_seconds=0.103, noise=0.001)

    assert compare(tmp_path, *runs).return_value == 1
    assert compare(tmp_path / "again", *runs, "--limit", "5").return_value == 0


def test_the_part_that_grew_comes_first(tmp_path: Path) -> None:
    done = compare(
        tmp_path,
        job(1, step_seconds=0.1, data_seconds=0.01),
        job(2, step_seconds=0.15, data_seconds=0.06),
        "--format",
        "json",
    )

    told = json.loads(done.output)
    assert told["slower"] is True
    assert told["parts"][0]["what"] == "data"
    assert told["parts"][0]["after"] - told["parts"][0]["before"] == pytest.approx(0.05, rel=0.05)
    assert told["step"]["low"] <= told["step"]["ratio"] <= told["step"]["high"]


def test_a_faster_run_says_so_and_is_well(tmp_path: Path) -> None:
    done = compare(tmp_path, job(1, step_seconds=0.12), job(2, step_seconds=0.1))

    assert done.return_value == 0
    assert done.output.startswith("FASTER")


def test_settings_that_differ_are_told(tmp_path: Path) -> None:
    after = job(2, step_seconds=0.1)
    for rank in after:
        rank.header.settings["NCCL_ALGO"] = "Ring"

    assert "NCCL_ALGO: - -> Ring" in compare(tmp_path, job(1, step_seconds=0.1), after).output


def test_too_few_steps_cannot_be_compared(tmp_path: Path) -> None:
    done = compare(tmp_path, job(1, step_seconds=0.1), job(2, step_seconds=0.1, steps=9))

    assert isinstance(done.exception, DistdiagError)
    assert "the second run has 7 whole steps" in done.exception.message
