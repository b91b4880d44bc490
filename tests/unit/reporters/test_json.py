"""The JSON report is a contract: its keys, its order and its bytes."""

import dataclasses
import io
import json
from pathlib import Path

from distdiag.findings import Report
from distdiag.reporters import REPORTERS
from distdiag.reporters import json as reporter
from tests.reports import STUCK, healthy, stuck

EXPECTED = Path(__file__).parent / "expected" / "stuck.json"


def rendered(report: Report) -> str:
    out = io.StringIO()
    reporter.render(report, out)
    return out.getvalue()


def test_report_is_the_expected_bytes() -> None:
    assert rendered(stuck()) == EXPECTED.read_text()


def test_fields_stand_in_the_order_of_the_contract() -> None:
    content = json.loads(rendered(stuck()))

    assert list(content) == [
        "schema",
        "verdict",
        "findings",
        "positions",
        "triage",
        "performance",
        "data_quality",
        "stacks",
        "attempts",
        "goodput",
    ]
    assert content["schema"] == "distdiag.report/1"


def test_lists_of_a_healthy_run_are_empty_not_null() -> None:
    content = json.loads(rendered(healthy()))

    assert content["findings"] == []
    assert content["verdict"]["culprits"] == content["verdict"]["evidence"] == content["verdict"]["next_steps"] == []
    assert content["verdict"]["sites"] == {}


def test_order_of_ranks_and_keys_changes_no_byte() -> None:
    report = stuck()
    shuffled = stuck(
        verdict=dataclasses.replace(
            STUCK, victims=tuple(reversed(STUCK.victims)), sites=dict(reversed(list(STUCK.sites.items())))
        ),
        performance=dict(reversed(list(report.performance.items()))),
    )

    assert rendered(shuffled) == rendered(report)


def test_numbers_that_json_does_not_know_become_null() -> None:
    content = json.loads(rendered(stuck(performance={"mean": float("nan"), "all": [float("inf"), 1.0]})))

    assert content["performance"] == {"mean": None, "all": [None, 1.0]}


def test_every_format_has_its_reporter() -> None:
    assert list(REPORTERS) == ["text", "json", "html"]
