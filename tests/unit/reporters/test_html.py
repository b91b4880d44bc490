"""The report as a page: whole by itself, safe whatever the logs say, bounded whatever their size."""

import dataclasses
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.analyzers.summary import pictures
from distdiag.analyzers.summary.pictures import pictures_of
from distdiag.commands import analyze
from distdiag.findings import Report
from distdiag.reporters import html
from distdiag.reporters._charts import charts_of
from distdiag.run import Run
from tests import reports
from tests.logs import Logs


def trained(steps: int = 12, world_size: int = 4) -> Logs:
    """Return logs of a job that took steps and then waits for its last rank, which loads data."""
    logs = Logs(world_size=world_size)
    for step in range(steps):
        for rank in logs:
            rank.step = step
            rank.sleep(0.02)
            rank.all_reduce("train.py:10 step")
            rank.end_step()
            rank.add(events.Memory(time_ns=rank.now_ns, step=step, rss_bytes=(1 + step) << 28))
    for rank in logs.but(world_size - 1):
        rank.step = steps
        rank.all_reduce("train.py:10 step", pending=True)
        rank.pulses("train.py:10 step", seconds=30, waiting=[steps + 1])
    logs[world_size - 1].step = steps
    logs[world_size - 1].data_loading("data.py:5 load")
    return logs


def pictured(run: Run) -> Report:
    report = diagnose(run)
    return dataclasses.replace(report, pictures=pictures_of(run, report.verdict))


def page(report: Report) -> str:
    out = io.StringIO()
    html.render(report, out)
    return out.getvalue()


class Tags(HTMLParser):
    """Collects ids, and what a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.ids += [told["id"] or ""] if "id" in told else []
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]


def figures(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    told: dict[str, Any] = json.loads(found[1])
    return told


def test_page_tells_the_verdict_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    run = trained().load(tmp_path)
    text = page(pictured(run))
    tags = Tags()
    tags.feed(text)

    assert "rank 3 never entered all_reduce 13" in text
    assert tags.loaded == []
    assert {"timeline", "waiting", "heat", "ledger", "memory"} <= set(tags.ids)
    assert set(figures(text)) == set(tags.ids) - {"figures"}


def test_every_chart_holds_what_was_recorded(tmp_path: Path) -> None:
    charts = {chart.key: chart.figure for chart in charts_of(pictured(trained().load(tmp_path)))}

    assert charts["heat"]["data"][0]["y"] == (0, 1, 2, 3)
    assert len(charts["memory"]["data"]) == 4
    never_ended = next(trace for trace in charts["timeline"]["data"] if trace["name"] == "never ended")
    assert len(never_ended["x"]) == 3
    assert min(never_ended["x"]) > 20
    marked = [text for text in charts["timeline"]["layout"]["yaxis"]["ticktext"] if text.startswith("<b>")]
    assert marked == ["<b>rank 3 ◀</b>"]
    assert sorted(charts["waiting"]["data"][0]["text"]) == ["rank 3", "ranks 0-2"]
    assert len(charts["waiting"]["layout"]["annotations"]) == 1


def test_a_report_without_pictures_is_a_page_without_charts() -> None:
    text = page(reports.stuck())

    assert "never entered all_gather 1842" in text
    assert "Plotly" not in text


def test_what_logs_say_cannot_become_markup(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce("train.py:10 </script><img src=x onerror=alert(1)>", pending=rank.rank == 0)
        rank.pulses(seconds=30)
    text = page(pictured(logs.load(tmp_path)))

    assert "<img" not in text
    assert text.count("</script>") == 3


def test_large_runs_are_drawn_in_bounds_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MOST_CELLS", 20), ("MOST_HEAT_RANKS", 3), ("MOST_SPANS", 4), ("MOST_SPAN_RANKS", 2)):
        monkeypatch.setattr(pictures, name, most)
    drawn = pictured(trained().load(tmp_path)).pictures

    assert drawn is not None
    assert drawn.heat is not None
    assert len(drawn.heat.ranks) * len(drawn.heat.steps) <= 20
    assert {span.rank for span in drawn.spans} == {0, 3}
    assert len(drawn.spans) <= 4
    assert len(drawn.left_out) == 4


def test_page_is_no_part_of_the_json_contract(tmp_path: Path) -> None:
    from distdiag.findings import as_json

    assert "pictures" not in as_json(pictured(trained().load(tmp_path)))


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    trained().write(tmp_path / "logs")
    output = tmp_path / "report.html"

    done = CliRunner().invoke(
        analyze.command, [str(tmp_path / "logs"), "--format", "html", "--output", str(output)], standalone_mode=False
    )

    assert done.exception is None
    assert done.return_value == 1
    text = output.read_text()
    assert text.startswith("<!doctype html>")
    assert "What this means" in text
    assert len(text) < 8 << 20
