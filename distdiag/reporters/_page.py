"""How the page looks, and the script that draws its charts when they come into view."""

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
