"""Pipelines made by hand: stages, schedule and bubble are told from the messages, and what is none is none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.analyzers.summary.performance import performance
from distdiag.findings import Report, Severity
from distdiag.reporters._pipeline import pipeline_texts
from tests.logs import Logs
from tests.pipelines import Plan, pipeline

FORMULAS = {"GPipe": 1, "1F1B": 1, "interleaved": 2}


def told(plan: Plan, directory: Path) -> Any:
    return performance(pipeline(plan).load(directory))["pipeline"]


def reported(plan: Plan, directory: Path) -> Report:
    return diagnose(pipeline(plan).load(directory))


@pytest.mark.parametrize("schedule", FORMULAS)
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 8), (4, 4), (3, 6)])
def test_schedule_and_bubble_are_those_of_the_plan(
    schedule: str, stages: int, microbatches: int, tmp_path: Path
) -> None:
    chunks = FORMULAS[schedule]
    plan = Plan(stages=stages, microbatches=microbatches, schedule=schedule, chunks=chunks)

    found = told(plan, tmp_path)

    name = "interleaved 1F1B" if chunks > 1 else schedule
    assert (found["schedule"], found["why_unknown"]) == (name, None)
    assert (found["stages"], found["microbatches"], found["virtual_stages"]) == (stages, microbatches, chunks)
    formula = (stages - 1) / (chunks * microbatches + stages - 1)
    assert found["bubble"]["formula"] == pytest.approx(formula, abs=1e-4)
    assert found["bubble"]["measured"] == pytest.approx(formula, abs=0.01)
    assert found["bubble"]["imbalance"] == pytest.approx(0.0, abs=0.005)


def test_stages_are_the_ranks_of_all_copies(tmp_path: Path) -> None:
    found = told(Plan(stages=3, copies=2), tmp_path)

    assert found["copies"] == 2
    assert [each["ranks"] for each in found["per_stage"]] == [[0, 1], [2, 3], [4, 5]]


def test_what_more_microbatches_would_give_is_told(tmp_path: Path) -> None:
    found = told(Plan(stages=4, microbatches=8), tmp_path)

    assert {"microbatches": 32, "bubble": 0.0857} in found["with_more_microbatches"]
    (sentence,) = pipeline_texts(found)
    assert sentence.startswith("pipeline of 4 stages, 1F1B, 8 micro-batches: 27.")
    assert sentence.endswith("the schedule alone has 27.3 %; m = 32 micro-batches would give 8.6 %")


@pytest.mark.parametrize(("schedule", "chunks"), [("GPipe", 1), ("1F1B", 1), ("interleaved", 2)])
def test_a_longer_last_stage_is_imbalance_and_named(schedule: str, chunks: int, tmp_path: Path) -> None:
    report = reported(Plan(schedule=schedule, chunks=chunks, heavy=1.6), tmp_path)

    bubble = report.performance["pipeline"]["bubble"]
    assert bubble["imbalance"] > 0.08
    assert bubble["imbalance"] == pytest.approx(bubble["excess"], abs=0.02)
    assert [(each.name, each.culprits) for each in report.findings] == [("stage-imbalance", (3,))]


def test_messages_that_take_long_are_transfers_and_a_finding(tmp_path: Path) -> None:
    report = reported(Plan(transfer=0.012), tmp_path)

    bubble = report.performance["pipeline"]["bubble"]
    assert bubble["transfers"] > 0.2
    assert bubble["imbalance"] < 0.01
    (finding,) = report.findings
    assert (finding.name, finding.code, finding.cause) == ("pipeline-bubble", "DD205", "transfers")


def test_small_messages_that_take_long_accuse_nobody(tmp_path: Path) -> None:
    assert reported(Plan(transfer=0.012, size_bytes=1 << 10), tmp_path).findings == ()


def test_fewer_microbatches_than_stages_are_remarked(tmp_path: Path) -> None:
    report = reported(Plan(microbatches=2), tmp_path)

    (finding,) = report.findings
    assert (finding.name, finding.severity, finding.cause) == ("pipeline-bubble", Severity.INFO, "few-microbatches")
    assert finding.summary.startswith("2 micro-batches for 4 pipeline stages")
    assert report.verdict.name == "healthy"


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
@pytest.mark.parametrize("microbatches", [4, 8])
def test_healthy_pipelines_are_silent(schedule: str, microbatches: int, tmp_path: Path) -> None:
    assert reported(Plan(schedule=schedule, microbatches=microbatches), tmp_path).findings == ()


# ---- what messages look like ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("schedule", FORMULAS)
def test_several_tensors_and_their_shapes_are_one_microbatch(schedule: str, tmp_path: Path) -> None:
    plan = Plan(stages=2, microbatches=4, schedule=schedule, chunks=FORMULAS[schedule], tensors=2, shapes=True)

    found = told(plan, tmp_path)

    assert found["why_unknown"] is None
    assert (found["microbatches"], found["virtual_stages"]) == (4, FORMULAS[schedule])


def test_messages_alone_tell_it_where_no_backward_was_seen(tmp_path: Path) -> None:
    logs = pipeline(Plan())
    for rank in logs:
        rank.records = [_without_backwards(record) for record in rank.records]

    found = performance(logs.load(tmp_path))["pipeline"]

    assert (found["schedule"], found["microbatches"]) == ("1F1B", 8)


def _without_backwards(record: events.Event) -> events.Event:
    known = isinstance(record, events.Call | events.Step)
    return msgspec.structs.replace(record, backwards=0) if known else record


def test_the_whole_logs_tell_the_same(tmp_path: Path) -> None:
    run = pipeline(Plan(heavy=1.3)).load(tmp_path)
    windowed = replace(run, quality=replace(run.quality, window_bytes=1 << 20))

    assert performance(windowed, whole=True)["pipeline"] == performance(run)["pipeline"]


# ---- where it abstains ----------------------------------------------------------------------------------------------
def test_without_device_times_the_schedule_is_told_and_no_bubble(tmp_path: Path) -> None:
    found = told(Plan(device="cuda", heavy=1.6), tmp_path)

    assert (found["schedule"], found["bubble"]) == ("1F1B", None)
    assert "no device times" in found["why_no_bubble"]
    (sentence,) = pipeline_texts(found)
    assert "how much of a step is bubble these logs cannot tell: the host runs ahead" in sentence


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Plan(schedule="looped", chunks=2), "all forwards of a rank come before its first backward"),
        (Plan(backwards=lambda made: made + 3), "do not fit 11 backwards"),
        (Plan(number_of=lambda step, usual: usual - step % 3), "changes from step to step"),
        (Plan(microbatches=1), "with one micro-batch a step all schedules are the same"),
    ],
)
def test_a_schedule_that_cannot_be_told_is_unknown_for_a_reason(plan: Plan, why: str, tmp_path: Path) -> None:
    found = told(plan, tmp_path)

    assert found["schedule"] == "unknown"
    assert why in found["why_unknown"]
    assert found["bubble"]["formula"] is None
    assert found["with_more_microbatches"] == []
    assert why in pipeline_texts(found)[0]


def with_schedule(logs: Logs, name: str, microbatches: int, stages: int) -> Logs:
    """Let all ranks tell which schedule they run, as recording does."""
    for rank in logs:
        value = {"schedule": name, "microbatches": microbatches, "stages": stages}
        rank.add(events.Decision(name=events.PIPELINE_SCHEDULE, value=value, time_ns=rank.now_ns))
    return logs


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ScheduleInterleavedZeroBubble", "interleaved zero bubble"),
        ("ScheduleZBVZeroBubble", "ZBV zero bubble"),
        ("ScheduleDualPipeV", "DualPipeV"),
    ],
)
def test_a_schedule_that_splits_backwards_has_a_name_and_no_formula(kind: str, name: str, tmp_path: Path) -> None:
    plan = Plan(stages=2, microbatches=4, schedule="interleaved", chunks=2)

    found = performance(with_schedule(pipeline(plan), kind, 4, 2).load(tmp_path))["pipeline"]

    assert (found["schedule"], found["why_unknown"]) == (name, None)
    assert (found["microbatches"], found["virtual_stages"]) == (4, 2)
    assert found["bubble"]["measured"] > 0
    assert (found["bubble"]["formula"], found["bubble"]["excess"], found["with_more_microbatches"]) == (None, None, [])
    assert f"{name}, 4 micro-batches, 2 stages a rank: its stages stand idle for" in pipeline_texts(found)[0]


@pytest.mark.parametrize(
    ("kind", "microbatches", "name"),
    [
        ("Schedule1F1B", 8, "1F1B"),
        ("MyOneByOne", 8, "1F1B"),
        ("MySplit", 4, "unknown"),
        ("ScheduleGPipe", 8, "unknown"),
    ],
)
def test_a_schedule_is_not_named_after_messages_that_only_look_alike(
    kind: str, microbatches: int, name: str, tmp_path: Path
) -> None:
    found = performance(with_schedule(pipeline(Plan()), kind, microbatches, 1).load(tmp_path))["pipeline"]

    assert found["schedule"] == name
    if name == "unknown":
        assert found["why_unknown"] == f"it runs {kind}, whose messages look like those of 1F1B"
        assert found["bubble"]["formula"] is None


@pytest.mark.parametrize("whole_of", [(), (0,)])
def test_backwards_that_are_split_are_no_schedule_that_is_known(whole_of: tuple[int, ...], tmp_path: Path) -> None:
    logs = pipeline(Plan(stages=2, microbatches=4, steps=14))
    for rank in logs:
        if rank.rank not in whole_of:
            rank.records = [_without_backwards(record) for record in rank.records]
        rank.records = [
            msgspec.structs.replace(record, forwards=1) if isinstance(record, events.Step) else record
            for record in rank.records
        ]

    found = performance(logs.load(tmp_path))["pipeline"]

    assert (found["schedule"], found["bubble"]["formula"]) == ("unknown", None)
    assert "as with schedules that split them (zero bubble)" in found["why_unknown"]


# ---- messages beside a pipeline -------------------------------------------------------------------------------------
@pytest.mark.parametrize("names", [("mesh_pp", "mesh_cp"), ("pipeline", "ring"), ("stages", "sequence")])
@pytest.mark.parametrize(("stages", "copies"), [(2, 2), (4, 2), (2, 3)])
def test_rings_beside_a_pipeline_are_no_stages(
    names: tuple[str, str], stages: int, copies: int, tmp_path: Path
) -> None:
    plan = Plan(stages=stages, microbatches=8, copies=copies, rings=names, steps=12)

    report = reported(plan, tmp_path)

    found = report.performance["pipeline"]
    assert (found["schedule"], found["stages"], found["copies"]) == ("1F1B", stages, copies)
    assert [each["ranks"] for each in found["per_stage"]] == [
        list(range(stage * copies, (stage + 1) * copies)) for stage in range(stages)
    ]
    assert found["bubble"]["measured"] == pytest.approx(found["bubble"]["formula"], abs=0.02)
    assert report.findings == ()


def test_a_longer_last_stage_is_named_beside_rings(tmp_path: Path) -> None:
    plan = Plan(stages=4, microbatches=8, copies=2, rings=("mesh_pp", "mesh_cp"), heavy=1.6)

    (finding,) = reported(plan, tmp_path).findings

    assert (finding.name, finding.culprits, finding.cause) == ("stage-imbalance", (6, 7), "last-stage")


def exchanging(pairs: list[tuple[int, int]], ranks: int) -> Logs:
    """Ranks that send to others in each step."""
    logs = Logs(world_size=ranks)
    for _ in range(12):
        for source, target in pairs:
            logs[source].send(target)
            logs[target].recv(source)
        for rank in logs:
            rank.all_reduce()
            rank.end_step()
    for rank in logs:
        rank.exit()
    return logs


@pytest.mark.parametrize(
    ("pairs", "ranks", "why"),
    [
        ([(0, 1), (1, 2), (2, 3), (3, 0)], 4, "rings"),
        ([(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)], 4, "more than two others"),
        ([(0, 1), (1, 0)], 4, "some ranks exchange messages and others do not"),
        ([(0, 1), (1, 2)], 3, "messages go one way only"),
    ],
)
def test_other_messages_are_no_pipeline(pairs: list[tuple[int, int]], ranks: int, why: str, tmp_path: Path) -> None:
    measured = performance(exchanging(pairs, ranks).load(tmp_path))

    assert measured["pipeline"] is None
    assert why in measured["unknown"]["pipeline"]


def test_a_job_without_messages_has_no_pipeline(tmp_path: Path) -> None:
    measured = performance(exchanging([], 2).load(tmp_path))

    assert measured["pipeline"] is None
    assert "pipeline" not in measured["unknown"]
