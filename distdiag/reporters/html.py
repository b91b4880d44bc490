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
from distdiag.reporters._charts import charts_of
from distdiag.reporters._incident import Chart
from distdiag.reporters._lines import plain
from distdiag.reporters._stacks import stack_lines

STYLE = """
:root { --ink:#1c2127; --dim:#5d6875; --paper:#fff; --panel:#f5f7f9; --line:#d9dfe5; --bad:#b3261e; --warn:#8a6100;
  --good:#1b6e3c; }
@media (prefers-color-scheme: dark) { :root { --ink:#e7ebef; --dim:#9aa5b1; --paper:#14181d; --panel:#1c2229;
  --line:#333c46; --bad:#ff8a80; --warn:#f2c14e; --good:#7bd69b; } }
* { box-sizing:border-box }
body { margin:0; background:var(--paper); color:var(--ink); font:16px/1.5 system-ui,sans-serif; }
main { max-width:1200px; margin:0 auto; padding:16px; }
header { border-left:6px solid var(--tone); padding:4px 16px; margin-bottom:24px; }
header.bad { --tone:var(--bad) } header.warn { --tone:var(--warn) } header.good { --tone:var(--good) }
.word { color:var(--tone); font-weight:700; letter-spacing:.06em; margin:0; }
h1 { font-size:1.35rem; line-height:1.3; margin:.1em 0 .4em; overflow-wrap:anywhere; }
h2 { font-size:1.05rem; margin:1.6em 0 .3em; } h3 { font-size:.95rem; margin:.8em 0 .1em; }
p { margin:.3em 0; overflow-wrap:anywhere; } .told { color:var(--dim); font-size:.9rem; }
.scroll { overflow-x:auto; }
table { border-collapse:collapse; font-size:.9rem; min-width:100%; }
th, td { text-align:left; padding:4px 10px; border-bottom:1px solid var(--line); vertical-align:top; }
th { color:var(--dim); font-weight:600; } tr.culprit td { font-weight:700; color:var(--bad); }
pre { background:var(--panel); padding:10px; font-size:.82rem; line-height:1.4; white-space:pre; overflow-x:auto; }
details { border:1px solid var(--line); border-radius:6px; padding:6px 12px; margin:8px 0; }
summary { cursor:pointer; overflow-wrap:anywhere; }
dt { font-weight:600; margin-top:.6em; } dd { margin:0; color:var(--dim); overflow-wrap:anywhere; }
.chart { width:100%; }
@media print { .chart { break-inside:avoid; } details > * { display:block; } main { max-width:none; } }
"""

SCRIPT = """
(function () {
  'use strict';
  var figures = JSON.parse(document.getElementById('figures').textContent);
  var dark = window.matchMedia('(prefers-color-scheme: dark)');
  function theme() {
    var style = getComputedStyle(document.documentElement);
    var ink = style.getPropertyValue('--ink').trim(), line = style.getPropertyValue('--line').trim();
    return { ink: ink, line: line, paper: style.getPropertyValue('--paper').trim() };
  }
  function axis(own, t) { return Object.assign({ gridcolor: t.line, zerolinecolor: t.line }, own); }
  function layout(own) {
    var t = theme();
    return Object.assign({}, own, {
      paper_bgcolor: t.paper, plot_bgcolor: t.paper, font: { color: t.ink, family: 'system-ui,sans-serif', size: 12 },
      margin: { l: 70, r: 16, t: 46, b: 46 }, legend: { orientation: 'h', y: 1.02, yanchor: 'bottom' },
      xaxis: axis(own.xaxis || {}, t), yaxis: axis(own.yaxis || {}, t),
      annotations: (own.annotations || []).map(function (a) { return Object.assign({ arrowcolor: t.ink }, a); })
    });
  }
  var drawn = {};
  function draw(element) {
    var key = element.id, figure = figures[key];
    if (drawn[key]) { return; }
    drawn[key] = true;
    Plotly.newPlot(element, figure.data, layout(figure.layout),
      { responsive: true, displaylogo: false });
  }
  var charts = Array.prototype.slice.call(document.querySelectorAll('.chart'));
  var seen = new IntersectionObserver(function (entries) {
    entries.forEach(function (entry) { if (entry.isIntersecting) { draw(entry.target); } });
  }, { rootMargin: '300px' });
  charts.forEach(function (chart) { seen.observe(chart); });
  window.addEventListener('beforeprint', function () { charts.forEach(draw); });
  dark.addEventListener('change', function () {
    charts.forEach(function (chart) {
      if (drawn[chart.id]) { Plotly.react(chart, figures[chart.id].data, layout(figures[chart.id].layout)); }
    });
  });
}());
"""


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
