"""The what-if simulator against steps that another player ran: times, causes, shares, and silence where all is well."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from distdiag.analyzers import diagnose
from distdiag.analyzers.performance.causes import causes_of
from distdiag.analyzers.performance.dependencies import graph_of
from distdiag.analyzers.performance.job import job_of
from distdiag.analyzers.performance.simulator import work_of
from distdiag.analyzers.performance.what_if import WhatIf, what_if, why_not
from distdiag.findings import Report
from distdiag.importers import load
from distdiag.run import Run
from tests import op_tables
from tests.op_tables import Cost, Shape, even, jittered, long_sequences, operations, slow_stage, slow_worker, write

SHAPES = [
    Shape(),
    Shape(dp=3, stages=2, microbatches=5),
    Shape(stages=1, microbatches=4),
    Shape(dp=1),
    Shape(dp=1, stages=1),
    Shape(microbatches=2, numbered=False),
    Shape(stages=2, chunks=2, microbatches=4),
]


@pytest.fixture
def run_of(tmp_path: Path) -> "RunOf":
    return RunOf(tmp_path)


class RunOf:
    """Plays a job out, writes its table and reads it again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names = itertools.count()

    def table(self, frame: pd.DataFrame, world: int | None = None) -> Run:
        facts = None if world is None else {"world_size": world, "dp_size": frame["dp_rank"].nunique()}
        return load(write(frame, self._directory / f"trace{next(self._names)}.parquet", facts))

    def __call__(self, cost: Cost = even, shape: Shape | None = None) -> Run:
        return self.table(operations(cost, shape))


def answer_of(run: Run) -> WhatIf:
    answer = what_if(run)
    assert answer is not None, why_not(run)
    return answer


def simulated(report: Report) -> dict[str, Any]:
    told: dict[str, Any] = report.performance["what_if"]
    return told


@pytest.mark.parametrize("shape", SHAPES)
def test_a_job_without_delays_is_simulated_to_the_time_it_took(shape: Shape, run_of: RunOf) -> None:
    answer = answer_of(run_of(even, shape))

    assert answer.simulated == pytest.approx(answer.measured, rel=1e-6)
    assert answer.slowdown == pytest.approx(1.0, abs=1e-6)


def test_simulated_time_of_a_pipeline_is_that_of_the_formula(run_of: RunOf) -> None:
    shape = Shape(stages=4, microbatches=8)

    answer = answer_of(run_of(even, shape))

    around = op_tables.GATHER + op_tables.LAYERNORM + op_tables.EMBEDDING + op_tables.SCATTER
    around += op_tables.CLIP + op_tables.OPTIMIZER
    messages = (answer.ideal - around - (8 + 3) * 0.3) / op_tables.MESSAGE
    assert 2 * 3 <= messages <= 2 * (8 + 3)  # down and up the pipeline at least, both ways of a microbatch at most


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_an_uneven_job_is_simulated_to_the_time_it_took(shape: Shape, run_of: RunOf) -> None:
    answer = answer_of(run_of(jittered(slow_stage(shape.stages - 1, 1.4), spread=0.05), shape))

    assert answer.simulated == pytest.approx(answer.measured, rel=2e-3)


def test_waiting_is_no_work_of_a_transfer(run_of: RunOf) -> None:
    job = job_of(run_of(jittered(slow_stage(3, 1.6))).operations)
    assert job is not None
    graph = graph_of(job)
    assert graph is not None

    work = work_of(job, graph)

    by_op = {op: work[np.asarray(nodes)].max() for op, nodes in job.nodes.groupby("op").groups.items()}
    assert by_op["forward-send"] == pytest.approx(op_tables.MESSAGE, abs=1e-6)
    assert by_op["backward-recv"] == pytest.approx(op_tables.MESSAGE, abs=1e-6)
    assert by_op["grads-reduce-scatter"] == pytest.approx(op_tables.SCATTER, abs=1e-6)
    assert by_op["optimizer-clip-main-grad"] == pytest.approx(op_tables.CLIP, abs=1e-6)
    assert by_op["embedding-grads-all-reduce"] == pytest.approx(op_tables.EMBEDDING, abs=1e-6)


def test_one_slow_worker_is_named_with_its_rank(run_of: RunOf) -> None:
    report = diagnose(
        run_of(
            jittered(slow_worker((1, 2), 1.5)),
        )
    )

    verdict, told = report.verdict, simulated(report)
    assert (verdict.name, verdict.code, verdict.culprits) == ("compute-straggler", "DD201", (5,))
    assert told["cause"] == "compute-straggler"
    assert told["worker_share"] > 0.9
    assert told["slowest_workers"] == [{"rank": 5, "dp": 1, "stage": 2, "slowdown": told["worker_slowdowns"][2][1]}]
    assert len(report.findings) == 1


def test_a_slow_worker_of_the_last_stage_is_not_taken_for_the_stage(run_of: RunOf) -> None:
    report = diagnose(run_of(jittered(slow_worker((1, 3), 1.5)), Shape(dp=4)))

    assert simulated(report)["last_stage_share"] > 0.9
    assert [finding.name for finding in report.findings] == ["compute-straggler"]
    assert report.verdict.culprits == (13,)


@pytest.mark.parametrize(("stage", "ranks"), [(3, (6, 7)), (0, (0, 1))])
def test_a_heavy_stage_is_named_with_its_ranks(stage: int, ranks: tuple[int, ...], run_of: RunOf) -> None:
    report = diagnose(run_of(jittered(slow_stage(stage, 1.6))))

    assert (report.verdict.name, report.verdict.code, report.verdict.culprits) == ("stage-imbalance", "DD204", ranks)
    assert simulated(report)["cause"] == "stage-imbalance"
    assert len(report.findings) == 1


def test_the_share_of_the_last_stage_is_its_part_of_the_loss(run_of: RunOf) -> None:
    report = diagnose(run_of(jittered(slow_stage(3, 1.6))))

    told = simulated(report)
    assert told["last_stage_share"] == pytest.approx(1.15, abs=0.02)
    assert told["worker_share"] < 0.1


@pytest.mark.parametrize("numbered", [True, False])
def test_long_sequences_are_told_from_slow_devices(numbered: bool, run_of: RunOf) -> None:
    report = diagnose(run_of(jittered(long_sequences()), Shape(dp=8, numbered=numbered)))

    assert (report.verdict.name, report.verdict.culprits) == ("token-imbalance", ())
    assert simulated(report)["cause"] == "token-imbalance"


def test_a_heavy_stage_with_uneven_sequences_is_both_the_stage_first(run_of: RunOf) -> None:
    def cost(step: int, dp: int, stage: int, microbatch: int) -> float:
        return long_sequences()(step, dp, stage, microbatch) * (1.5 if stage == 3 else 1.0)

    report = diagnose(run_of(jittered(cost), Shape(dp=4, steps=3)))

    assert [finding.name for finding in report.findings] == ["stage-imbalance", "token-imbalance"]
    assert report.verdict.name == "stage-imbalance"
    assert simulated(report)["cause"] == "stage-imbalance"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_healthy_job_is_silent(shape: Shape, run_of: RunOf) -> None:
    report = diagnose(run_of(jittered(even, spread=0.01), shape))

    assert report.verdict.name == "healthy"
    assert report.findings == ()
    assert simulated(report)["cause"] is None


def test_a_slow_device_that_is_the_only_worker_of_its_stage_is_not_accused(run_of: RunOf) -> None:
    report = diagnose(run_of(jittered(slow_stage(1, 1.5)), Shape(dp=1)))

    assert [finding.name for finding in report.findings] == ["stage-imbalance"]
    assert report.verdict.confidence == "medium"
    assert any("would look the same" in reason for reason in report.verdict.evidence)


def test_one_slow_rank_of_a_job_without_a_pipeline_is_named(run_of: RunOf) -> None:
    report = diagnose(run_of(jittered(slow_worker((2, 0), 1.4)), Shape(dp=4, stages=1)))

    assert (report.verdict.name, report.verdict.culprits) == ("compute-straggler", (2,))
    assert simulated(report)["last_stage_share"] is None


def test_a_small_loss_is_told_and_no_warning(run_of: RunOf) -> None:
    report = diagnose(run_of(jittered(slow_worker((1, 2), 1.12), spread=0.001), Shape(dp=4)))

    assert 1.03 < simulated(report)["slowdown"] < 1.1
    assert report.verdict.name == "healthy"
    assert [(finding.name, finding.severity) for finding in report.findings] == [("compute-straggler", "info")]


@pytest.mark.parametrize("kind", ["forward-compute", "optimizer", "optimizer-clip-main-grad", "params-all-gather"])
def test_kinds_that_are_missing_are_left_out(kind: str, run_of: RunOf) -> None:
    whole = operations(jittered(slow_worker((1, 2), 1.5)))

    report = diagnose(run_of.table(whole[whole["optype"] != kind]))

    assert report.verdict.name == "compute-straggler"
    assert report.verdict.culprits == (5,)


def test_kinds_that_are_not_understood_are_left_out_and_named(run_of: RunOf) -> None:
    whole = operations()
    strange = whole[whole["optype"] == "gc"].assign(optype="coffee-break", duration=3.0)

    told = simulated(diagnose(run_of.table(pd.concat([whole, strange]))))

    assert told["left_out"] == ["coffee-break"]
    assert told["slowdown"] == pytest.approx(1.0, abs=1e-6)


def test_operations_that_nobody_understands_are_no_healthy_job(run_of: RunOf) -> None:
    whole = operations(shape=Shape(stages=1))

    report = diagnose(run_of.table(whole[whole["optype"] == "gc"].assign(optype="coffee-break")))

    assert report.verdict.name == "insufficient-evidence"
    assert "coffee-break" in report.verdict.summary


def test_a_transfer_that_ended_before_its_peer_came_counts_as_none(run_of: RunOf) -> None:
    early = operations(shape=Shape(steps=2))
    received = (early["optype"] == "forward-recv") & (early["seq_id"] == 0) & (early["stage"] == 1)
    early.loc[received, "duration"] = 0.0
    job = job_of(run_of.table(early).operations)
    assert job is not None
    graph = graph_of(job)
    assert graph is not None

    work = work_of(job, graph)

    (node,) = np.flatnonzero((job.nodes["op"] == "forward-recv") & (job.nodes["seq"] == 0) & (job.nodes["stage"] == 1))
    assert (work[node] == 0).all()


def test_lost_time_is_told_in_hours_of_the_whole_job(run_of: RunOf) -> None:
    told = simulated(diagnose(run_of.table(operations(jittered(slow_worker((1, 2), 1.5))), world=64)))

    lost = (told["step_seconds"] - told["ideal_step_seconds"]) * 6 * 64 / 3600
    assert told["devices"] == 64
    assert told["gpu_hours_wasted"] == pytest.approx(lost, rel=1e-6)
    assert told["waste"] == pytest.approx(1 - 1 / told["slowdown"], abs=1e-6)


def test_time_between_operations_is_launch_delay_and_no_slowdown(run_of: RunOf) -> None:
    table = operations()
    table["start_ts"] *= 1.2  # everything takes as long as before, and begins later

    told = simulated(diagnose(run_of.table(table)))

    assert told["launch_delay"] > 1.1
    assert told["cause"] in (None, "launch-delay")


def test_collections_at_different_times_are_the_cause(run_of: RunOf) -> None:
    table = operations(jittered(even), Shape(dp=4, steps=8), lambda step, dp, stage: 1.0 if step % 4 == dp else 0.0)

    report = diagnose(run_of.table(table))

    assert [finding.name for finding in report.findings] == ["gc-pause"]
    assert report.verdict.name == "gc-pause"
    assert simulated(report)["cause"] == "gc-pause"


def test_a_loss_that_nothing_explains_is_told_beside_a_healthy_verdict(run_of: RunOf) -> None:
    table = operations(jittered(even), Shape(dp=4, steps=8))
    scatter = table["optype"] == "grads-reduce-scatter"
    table.loc[scatter & (table["step"] % 4 == 1), "duration"] += 1.5
    table.loc[table["optype"].str.startswith("optimizer") & (table["step"] % 4 == 1), "start_ts"] += 1.5

    report = diagnose(run_of.table(table))

    assert report.verdict.name == "healthy"
    assert simulated(report)["cause"] == "other"
    assert "no worker, stage or length of sequences explains half" in report.verdict.summary
    assert "grads-reduce-scatter" in report.verdict.summary


def test_order_of_rows_and_numbers_of_stages_do_not_matter(run_of: RunOf) -> None:
    table = operations(jittered(slow_stage(3, 1.6)))
    shuffled = table.sample(frac=1.0, random_state=3).assign(stage=table["stage"] + 4, step=table["step"] * 100 + 7)

    usual, other = answer_of(run_of.table(table)), answer_of(run_of.table(shuffled))

    assert other.slowdown == usual.slowdown
    assert causes_of(other).heavy_stage is not None
    assert causes_of(other).word == causes_of(usual).word


def test_a_report_of_measurements_alone_asks_for_no_logs(run_of: RunOf) -> None:
    report = diagnose(run_of(jittered(slow_stage(3, 1.6))))

    assert (report.positions, report.triage, report.performance["unknown"]) == ((), {}, {})
    assert report.data_quality["missing_ranks"] == ()
