"""Own fault programs: each class of root cause on real ranks, and healthy programs that only look suspicious."""

from collections.abc import Iterator

import pytest

from tests.faults.matrix import ALIKE, MATRIX
from tests.faults.runs import Fault, Runs, assert_as_expected, selected

KINDS_DIFFER = tuple(fault for fault in MATRIX if fault.name in ("reduced_apart", "maximum_skipped"))


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    started = Runs(tmp_path_factory.mktemp("faults"), selected(MATRIX, request.session.items))
    yield started
    started.close()


@pytest.mark.parametrize("fault", [each for each in MATRIX if each.name not in ALIKE], ids=lambda fault: fault.name)
def test_program_gets_its_verdict(fault: Fault, runs: Runs) -> None:
    outcome = runs.outcome(fault)

    assert_as_expected(fault, outcome)
    assert outcome.partings == () or not fault.is_healthy


@pytest.mark.parametrize("fault", KINDS_DIFFER, ids=lambda fault: fault.name)
def test_watch_tells_reductions_of_several_kinds_though_nothing_fails(fault: Fault, runs: Runs) -> None:
    (told,) = runs.outcome(fault).partings

    assert told.ranks == fault.culprits
    assert "by MAX" in told.summary
