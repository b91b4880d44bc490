"""Own fault programs: each class of root cause on real ranks, and healthy programs that only look suspicious."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runs import Fault, Runs, assert_as_expected, selected

WORKER = Path(__file__).parents[1] / "faults" / "programs.py"
HEALTHY = ("healthy",)

MATRIX = (
    Fault(name="healthy_mesh", ranks=8, verdicts=HEALTHY),
    Fault(name="healthy_evaluation", ranks=3, verdicts=HEALTHY),
    Fault(name="healthy_thread", ranks=2, verdicts=HEALTHY),
    Fault(name="mesh_loader_stuck", ranks=8, verdicts=("rank-missing",), culprits=(5,), cause="data-loading"),
    Fault(name="stage_computes", ranks=4, verdicts=("rank-missing",), culprits=(2,), cause="running", at_root=True),
    Fault(name="stopped", ranks=3, verdicts=("rank-missing",), culprits=(2,), cause="frozen"),
    Fault(name="early_exit", ranks=3, verdicts=("rank-missing",), culprits=(1,), cause="exited"),
    Fault(name="late_checkpoint", ranks=3, verdicts=("late-rank",), culprits=(0,), mentions="save checkpoint"),
    Fault(name="guarded_gather", ranks=3, verdicts=("sequence-divergence",), culprits=(0,), at_root=True),
    Fault(name="early_return", ranks=3, verdicts=("sequence-divergence",), culprits=(2,), at_root=True),
    Fault(name="silent_in_subgroup", ranks=4, verdicts=("sequence-divergence",), culprits=(1,), at_root=True),
    Fault(name="two_ranks_apart", ranks=2, verdicts=("sequence-divergence",), culprits=(), mentions="majority"),
    Fault(name="ops_differ", ranks=3, verdicts=("op-mismatch",), culprits=(2,), at_root=True),
    Fault(name="shapes_differ", ranks=3, verdicts=("shape-mismatch",), culprits=(2,)),
    Fault(name="types_differ", ranks=3, verdicts=("dtype-mismatch",), culprits=(1,), at_root=True),
    Fault(name="roots_differ", ranks=3, verdicts=("root-mismatch",), culprits=(1,), at_root=True),
    Fault(name="loaders_uneven", ranks=3, verdicts=("uneven-batches",), culprits=(2,)),
    Fault(name="skipped_batch", ranks=3, verdicts=("skipped-steps",), culprits=(1,)),
    Fault(name="raises", ranks=3, verdicts=("rank-died",), culprits=(2,), cause="exception", at_root=True),
    Fault(name="killed", ranks=3, verdicts=("rank-died",), culprits=(1,), cause="killed"),
    Fault(name="hard_exit", ranks=3, verdicts=("rank-died",), culprits=(1,), cause="exited"),
    Fault(name="out_of_memory", ranks=2, verdicts=("out-of-memory",), culprits=(0,), at_root=True),
    Fault(name="memory_error_caught", ranks=3, verdicts=("out-of-memory",), culprits=(1,), at_root=True),
    Fault(name="groups_swapped", ranks=3, verdicts=("order-deadlock",), culprits=(2,)),
    Fault(name="ring", ranks=4, verdicts=("p2p-deadlock",), culprits=(0, 1, 2, 3), at_root=True),
    Fault(name="message_forgotten", ranks=3, verdicts=("p2p-unmatched",), culprits=(1,), at_root=True),
    Fault(name="guarded_group", ranks=3, verdicts=("group-mismatch",), culprits=(0,), at_root=True),
)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    started = Runs(WORKER, tmp_path_factory.mktemp("faults"), selected(MATRIX, request.session.items))
    yield started
    started.close()


@pytest.mark.parametrize("fault", MATRIX, ids=lambda fault: fault.name)
def test_program_gets_its_verdict(fault: Fault, runs: Runs) -> None:
    outcome = runs.outcome(fault)

    assert_as_expected(fault, outcome, WORKER)
