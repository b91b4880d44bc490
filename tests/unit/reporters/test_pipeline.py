"""The pipeline of a report, for people: sentences, a row and a bar for each stage."""

from typing import Any

import pytest

from distdiag.findings import Pictures, Report, Verdict
from distdiag.reporters import text
from distdiag.reporters._charts import charts_of
from distdiag.reporters._lines import plain
from tests.reports import FINDING, healthy, stuck

PIPELINE: dict[str, Any] = {
    "schedule": "1F1B",
    "why_unknown": None,
    "stages": 2,
    "copies": 1,
    "microbatches": 4,
    "virtual_stages": 1,
    "steps": 20,
    "bubble": {
        "measured": 0.31,
        "formula": 0.2,
        "excess": 0.11,
        "imbalance": 0.08,
        "transfers": 0.03,
        "rest": 0.0,
    },
    "why_no_bubble": None,
    "per_stage": [
        {"stage": 0, "ranks": [0, 1], "busy_seconds": 0.06, "idle_seconds": 0.04, "bubble": 0.4},
        {"stage": 1, "ranks": [2, 3], "busy_seconds": 0.078, "idle_seconds": 0.022, "bubble": 0.22},
    ],
    "with_more_microbatches": [{"microbatches": 8, "bubble": 0.1111}, {"microbatches": 16, "bubble": 0.0588}],
}


def lines(report: Report) -> str:
    return "\n".join(plain(line) for line in text.compose(report, width=200, height=200))


def slow(**performance: Any) -> Report:
    verdict = Verdict(name=FINDING.name, code=FINDING.code, summary=FINDING.summary)
    return stuck(verdict=verdict, performance=performance)


def test_healthy_runs_are_told_their_bubble_in_two_lines() -> None:
    told = lines(healthy(performance={"pipeline": PIPELINE}))

    assert (
        "pipeline of 2 stages, 1F1B, 4 micro-batches: 31.0 % of its time is bubble, where the schedule alone has "
        "20.0 %; m = 16 micro-batches would give 5.9 %"
    ) in told
    assert "11.0 % beyond that: 8.0 % stages of different length, 3.0 % sending and receiving itself" in told


def test_slow_runs_get_a_row_for_each_stage() -> None:
    told = lines(slow(pipeline=PIPELINE))

    rows = [line.split() for line in told.splitlines() if line.strip().startswith(("0 ", "1 "))]
    assert ["0", "60", "ms", "40", "ms", "40.0", "%", "0-1"] in rows
    assert ["1", "78", "ms", "22", "ms", "22.0", "%", "2-3"] in rows


def test_small_excess_is_not_told() -> None:
    near = {**PIPELINE, "bubble": {**PIPELINE["bubble"], "measured": 0.21, "excess": 0.01}}

    assert "beyond that" not in lines(healthy(performance={"pipeline": near}))


def test_without_comparable_clocks_the_rest_may_be_transfers() -> None:
    bubble = {**PIPELINE["bubble"], "transfers": None, "rest": 0.03}

    told = lines(healthy(performance={"pipeline": {**PIPELINE, "bubble": bubble}}))

    assert "8.0 % stages of different length, 3.0 % sending and receiving, or ranks that are late by turns" in told


@pytest.mark.parametrize("report", [healthy(performance={"pipeline": None}), healthy(performance={})])
def test_without_a_pipeline_nothing_is_told(report: Report) -> None:
    assert "pipeline" not in lines(report)


def test_an_unknown_schedule_is_told_with_its_reason() -> None:
    unknown = {
        **PIPELINE,
        "schedule": "unknown",
        "why_unknown": "the number of messages changes from step to step",
        "microbatches": None,
        "virtual_stages": None,
        "bubble": {**dict.fromkeys(PIPELINE["bubble"]), "measured": 0.31},
        "with_more_microbatches": [],
    }

    told = lines(healthy(performance={"pipeline": unknown}))

    assert (
        "pipeline of 2 stages, schedule unknown, because the number of messages changes from step to step: its stages "
        "stand idle for 31.0 % of its time"
    ) in told


def test_the_page_draws_a_bar_for_each_stage() -> None:
    report = healthy(performance={"pipeline": PIPELINE}, pictures=Pictures())

    charts = {chart.key: chart for chart in charts_of(report)}

    figure = charts["pipeline"].figure
    assert [trace["x"] for trace in figure["data"]] == [[60.0, 78.0], [40.0, 22.0]]
    assert figure["layout"]["shapes"][0]["x0"] == 80.0
    assert "m = 16 micro-batches would give 5.9 %." in charts["pipeline"].told
