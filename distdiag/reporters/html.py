"""The report as one page that needs nothing else: it opens offline, on a phone, in the dark, and can be printed."""

import html
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import msgspec

from distdiag import wording
from distdiag.errors import DistdiagError
from distdiag.findings import Finding, Position, Report
from distdiag.reporters import words
from distdiag.reporters._chart import Chart
from distdiag.reporters._charts import charts_of
from distdiag.reporters._lines import plain
from distdiag.reporters._page import SCRIPT, STYLE
from distdiag.reporters._stacks import stack_lines

STACK_COLUMNS = 110
MOST_PLACES = 60
COLOURS = {"red": "bad", "yellow": "warn", "green": "good"}


def render(report: Report, out: TextIO) -> None:
    """Write ``report`` as a page; its charts need ``report.pictures``."""
    charts = charts_of(report)
    title = report.verdict.summary.split("\n", 1)[0]
    out.write(f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>')
    out.write('<meta name="viewport" content="width=device-width, initial-scale=1">')
    out.write(f"<style>{STYLE}</style></head><body><main>")
    for part in _body(report, charts):
        out.write(part + "\n")
    out.write("</main>")
    if charts:
        out.write(f"<script>{_plotly()}</script>")
        figures = {chart.key: chart.figure for chart in charts}
        # The text of a script ends at its closing tag, wherever that stands.
        encoded = msgspec.json.encode(figures).decode().replace("<", "\\u003c")
        out.write(f'<script type="application/json" id="figures">{encoded}</script>')
        out.write(f"<script>{SCRIPT}</script>")
    out.write("</body></html>\n")


def _plotly() -> str:
    """Return Plotly's script from the installed package, without importing it."""
    found = importlib.util.find_spec("plotly")
    for folder in (found.submodule_search_locations or ()) if found else ():
        script = Path(folder) / "package_data" / "plotly.min.js"
        if script.is_file():
            return script.read_text(encoding="utf-8")
    raise DistdiagError("the charts of the page need plotly", "pip install plotly, or take --format text")


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _body(report: Report, charts: Iterable[Chart]) -> Iterator[str]:
    yield from _verdict(report)
    yield from _places(report)
    for chart in charts:
        yield f'<section><h2>{_text(chart.title)}</h2><p class="told">{_text(chart.told)}</p>'
        height = chart.figure["layout"]["height"]
        yield f'<div class="chart" id="{chart.key}" style="min-height:{height}px"></div></section>'
    if report.pictures is not None and report.pictures.left_out:
        yield f'<p class="told">Not all of it is drawn: {_text("; ".join(report.pictures.left_out))}.</p>'
    yield from _stacks(report)
    yield from _findings(report)
    yield from _triage(report)


def _verdict(report: Report) -> Iterator[str]:
    verdict = report.verdict
    word = words.headline(verdict.name, verdict.code)
    first, *rest = verdict.summary.split("\n")
    yield f'<header class="{COLOURS.get(words.colour(word).split()[-1], "bad")}"><p class="word">{_text(word)}</p>'
    yield f"<h1>{_text(first)}</h1>" + "".join(f"<p>{_text(each)}</p>" for each in rest)
    code = f"{verdict.code} {verdict.name}, " if verdict.code else ""
    reasons = f": {'; '.join(verdict.evidence)}" if verdict.evidence else ""
    yield f'<p class="told">{_text(f"{code}confidence {verdict.confidence}{reasons}")}</p></header>'
    if verdict.next_steps:
        steps = "".join(f"<li>{_text(step)}</li>" for step in verdict.next_steps)
        yield f"<section><h2>Do next</h2><ol>{steps}</ol></section>"


def _places(report: Report) -> Iterator[str]:
    """Yield a table with a row for all ranks that are at the same place; the culprits come first."""
    culprits = set(report.verdict.culprits)
    alike: dict[tuple[bool, object, str, str, str], list[Position]] = {}
    for each in sorted(report.positions, key=lambda each: (each.rank not in culprits, each.rank)):
        place = (each.rank in culprits, each.step, each.phase or "", each.where or "", each.doing)
        alike.setdefault(place, []).append(each)
    if not alike:
        return
    yield '<section><h2>Where the ranks are</h2><div class="scroll"><table><tr>'
    yield "".join(f"<th>{name}</th>" for name in ("ranks", "step", "phase", "where", "doing", "since")) + "</tr>"
    for (is_culprit, step, phase, where, doing), same in list(alike.items())[:MOST_PLACES]:
        since = [each.since_seconds for each in same if each.since_seconds is not None]
        cells = (
            wording.fold(each.rank for each in same),
            "" if step is None else step,
            phase,
            where,
            doing,
            words.duration(max(since)) if since else "",
        )
        yield (
            f'<tr class="{"culprit" if is_culprit else ""}">'
            + "".join(f"<td>{_text(each)}</td>" for each in cells)
            + "</tr>"
        )
    yield "</table></div>"
    if len(alike) > MOST_PLACES:
        yield f'<p class="told">and {len(alike) - MOST_PLACES} more places: --format json has them all</p>'
    yield "</section>"


def _stacks(report: Report) -> Iterator[str]:
    lines = stack_lines(report.stacks, STACK_COLUMNS)
    if lines:
        told = "\n".join(_text(plain(line)) for line in lines)
        yield f'<section><h2>Stacks, merged</h2><pre class="scroll">{told}</pre></section>'


def _findings(report: Report) -> Iterator[str]:
    if not report.findings:
        return
    manuals = report.pictures.manuals if report.pictures is not None else {}
    yield "<section><h2>Findings</h2>"
    for number, finding in enumerate(report.findings):
        yield f"<details{' open' if number == 0 else ''}><summary><b>{_text(finding.code)} {_text(finding.name)}</b> "
        first, *rest = finding.summary.split("\n")
        yield f'<span class="told">{finding.severity}</span> {_text(first)}</summary>'
        yield "".join(f"<p>{_text(each)}</p>" for each in rest) + _lists(finding)
        if finding.code in manuals:
            yield f"<details><summary>What this means</summary><pre>{_text(manuals[finding.code])}</pre></details>"
        yield "</details>"
    yield "</section>"


def _lists(finding: Finding) -> str:
    told = ""
    for heading, each in (("Evidence", finding.evidence), ("Do", finding.action)):
        if each:
            told += f"<h3>{heading}</h3><ul>" + "".join(f"<li>{_text(line)}</li>" for line in each) + "</ul>"
    if finding.sites:
        ranks: dict[str, list[int]] = {}
        for rank, site in finding.sites.items():
            ranks.setdefault(site, []).append(rank)
        sites = "".join(f"<li><code>{_text(site)}</code> {wording.fold(at)}</li>" for site, at in ranks.items())
        told += f"<h3>Where</h3><ul>{sites}</ul>"
    return told


def _triage(report: Report) -> Iterator[str]:
    if report.triage:
        yield "<section><h2>Questions in their order</h2><dl>"
        for question, answer in report.triage.items():
            yield f"<dt>{_text(question)}</dt><dd>{_text(answer)}</dd>"
        yield "</dl></section>"
