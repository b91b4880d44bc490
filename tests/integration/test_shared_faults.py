"""The fault programs that lie beside the project, where they do: each has to get its verdict."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runs import Fault, Runs, assert_as_expected, selected

SHARED = Path(__file__).parents[3] / "shared" / "faults"
WORKER = SHARED / "worker.py"
OTHERS_TO_FIND = frozenset({"loss_scale", "straggler", "moving_straggler", "garbage_collection", "tiny_collectives"})
"""Slow and silent ones: they neither hang nor die."""
AT_SECOND_CALL = frozenset({"silent_mispairing"})
"""The stop comes calls later, in another function."""

pytestmark = pytest.mark.skipif(not WORKER.exists(), reason="needs ../shared/faults")


def _faults() -> list[Fault]:
    if not WORKER.exists():
        return []
    expected = json.loads((SHARED / "expected.json").read_text())
    return [
        Fault(
            name=name,
            ranks=wanted["nproc"],
            verdicts=tuple(wanted["verdict"]),
            culprits=None if "culprits" not in wanted else tuple(wanted["culprits"]),
            cause=wanted.get("cause"),
            at_root=wanted.get("site") == "ROOT",
            mentions=wanted.get("evidence_mentions", ""),
        )
        for name, wanted in expected.items()
        if name not in OTHERS_TO_FIND
    ]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    started = Runs(WORKER, tmp_path_factory.mktemp("shared"), selected(_faults(), request.session.items))
    yield started
    started.close()


@pytest.mark.parametrize("fault", _faults(), ids=lambda fault: fault.name)
def test_shared_program_gets_its_verdict(fault: Fault, runs: Runs) -> None:
    outcome = runs.outcome(fault)

    assert_as_expected(fault, outcome, WORKER)
    if fault.name in AT_SECOND_CALL:
        assert outcome.report.verdict.seq == 2
