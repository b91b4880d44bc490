"""The fault programs that lie beside the project, where they do: each has to get its verdict."""

from collections.abc import Iterator

import pytest

from tests.faults.matrix import SHARED
from tests.faults.runs import Fault, Runs, assert_as_expected, selected

AT_SECOND_CALL = frozenset({"silent_mispairing"})
"""The stop comes calls later, in another function."""

pytestmark = pytest.mark.skipif(not SHARED, reason="needs ../shared/faults")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    started = Runs(tmp_path_factory.mktemp("shared"), selected(SHARED, request.session.items))
    yield started
    started.close()


@pytest.mark.parametrize("fault", SHARED, ids=lambda fault: fault.name)
def test_shared_program_gets_its_verdict(fault: Fault, runs: Runs) -> None:
    outcome = runs.outcome(fault)

    assert_as_expected(fault, outcome)
    if fault.name in AT_SECOND_CALL:
        assert outcome.report.verdict.seq == 2
