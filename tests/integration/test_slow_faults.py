"""Slow jobs on real ranks: the cause and the rank are told, and busy machines accuse nobody."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from distdiag.analyzers.performance import measure
from distdiag.analyzers.performance.ledger import PARTS
from distdiag.run import load
from tests.faults.runs import Fault, Runs, selected
from tests.faults.slow_kinds import ALL, RIGHT, judged
from tests.ranks import launch

WORKER = Path(__file__).parents[1] / "faults" / "slow.py"


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    patient = {"PG_TIMEOUT": "30"}  # nobody hangs here, and busy machines start slowly
    started = Runs(tmp_path_factory.mktemp("slow"), selected(ALL, request.session.items), patient)
    yield started
    started.close()


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_program_gets_its_verdict(fault: Fault, runs: Runs) -> None:
    outcome = runs.outcome(fault)

    judgement = judged(fault, outcome)

    assert judgement.answer == RIGHT, (judgement, outcome.report.verdict)


# ---- the ledger -----------------------------------------------------------------------------------------------------
SLEPT = ("data", "forward", "backward", "optimizer", "checkpoint", "other")
MILLISECONDS = (5, 20, 80)
Slept = tuple[dict[str, int], pd.DataFrame]
"""How long each part slept, in milliseconds, and the ledger."""


@pytest.fixture(scope="module", params=range(3))
def ledger(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, int], pd.DataFrame]:
    """Let one rank sleep in every part of every other step, each part for one of the times."""
    asleep = {part: MILLISECONDS[(request.param + place) % 3] for place, part in enumerate(SLEPT)}
    directory = tmp_path_factory.mktemp("ledger")
    program = f"import sys\nsys.argv[1:] = ['every_other_step']\nexec(open({str(WORKER)!r}).read())\n"
    variables = {f"SLEEP_{part.upper()}": str(slept) for part, slept in asleep.items()} | {"PG_TIMEOUT": "30"}
    ended = launch(program, directory, variables=variables, forked=True)
    assert [each.code for each in ended] == [0, 0], ended[1].stderr
    return asleep, measure(load(directory / "logs")).ledger


def test_the_parts_add_up_to_the_step(ledger: Slept) -> None:
    _, rows = ledger

    sums = rows[[f"{part}_ns" for part in PARTS]].sum(axis=1)

    assert np.abs(sums / rows["step_ns"] - 1).max() <= 0.01


def test_sleep_is_put_down_to_the_part_it_is_in(ledger: Slept) -> None:
    asleep, rows = ledger
    of_sleeper = rows[rows["rank"] == 1]

    # On a busy machine a sleep may end late, but never early; the middle one is as long as it should be.
    odd = of_sleeper[of_sleeper["step"] % 2 == 1].median()
    even = of_sleeper[of_sleeper["step"] % 2 == 0].median()

    for part, milliseconds in asleep.items():
        assert (odd - even)[f"{part}_ns"] / 1e6 == pytest.approx(milliseconds, rel=0.1, abs=_slack()), part


def test_the_other_rank_waits_as_long(ledger: Slept) -> None:
    asleep, rows = ledger
    waiting = rows[rows["rank"] == 0].set_index("step")["waiting_ns"]

    longer = waiting[waiting.index % 2 == 1].median() - waiting[waiting.index % 2 == 0].median()

    # The optimizer's sleep comes after the gradients were shared: it is waited for in the next step.
    expected = sum(asleep.values()) - 2 * asleep["optimizer"]
    assert longer / 1e6 == pytest.approx(expected, rel=0.1, abs=_slack())


def _slack() -> float:
    """Return by how many milliseconds a sleep may end late where processes wait for a core."""
    return 0.5 + max(0.0, os.getloadavg()[0] - (os.cpu_count() or 1))
