"""The charts of a report, in the order in which one reads them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distdiag.findings import Curve, Heat, Report
from distdiag.reporters._incident import STATES, Chart, Figure, height_of, timeline_chart, waiting_chart
from distdiag.reporters._pipeline import pipeline_texts
from distdiag.wording import named

ROW_PIXELS, AROUND_PIXELS, MOST_PIXELS = 26, 160, 900
PARTS = {
    "forward": "#3b7dd8",
    "backward": "#1f4e9c",
    "optimizer": "#6fa8dc",
    "data": "#e0a526",
    "checkpoint": "#8e6bbf",
    "communication": "#c8483b",
    "other": "#9aa3ad",
}
"""Parts of a step and their colours, which differ in lightness too."""
MOST_BARS = 24


def charts_of(report: Report) -> list[Chart]:
    """Return the charts that a report has data for, in the order in which one reads them."""
    pictures = report.pictures
    if pictures is None:
        return []
    drawn = (
        timeline_chart(pictures.spans, pictures.incident_seconds, report),
        waiting_chart(pictures.arrows, report),
        _heat(pictures.heat),
        _ledger(report.performance.get("ranks") or ()),
        _pipeline(report.performance.get("pipeline")),
        _bandwidth(report.performance.get("groups") or ()),
        _memory(pictures.curves, report.verdict.culprits),
    )
    return [chart for chart in drawn if chart is not None]


def _heat(heat: Heat | None) -> Chart | None:
    if heat is None or not heat.steps:
        return None
    shown = {"waiting for others": heat.waiting_ms, "own work": heat.own_ms}
    traces: list[Figure] = [
        {
            "type": "heatmap",
            "name": name,
            "x": heat.steps,
            "y": heat.ranks,
            "z": values,
            "visible": position == 0,
            "colorscale": "YlOrRd" if position == 0 else "YlGnBu",
            "reversescale": True,
            "colorbar": {"title": {"text": "ms"}},
            "hovertemplate": "rank %{y}, step %{x}: %{z} ms<extra></extra>",
        }
        for position, (name, values) in enumerate(shown.items())
    ]
    buttons = [
        {"label": name, "method": "restyle", "args": ["visible", [other == name for other in shown]]} for name in shown
    ]
    layout = {
        "height": max(260, height_of(min(len(heat.ranks), 30))),
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "rank"}, "autorange": "reversed", "tickformat": "d"},
        "updatemenus": [
            {
                "buttons": buttons,
                "type": "buttons",
                "direction": "right",
                "x": 0,
                "y": 1.02,
                "yanchor": "bottom",
                "xanchor": "left",
            }
        ],
    }
    told = "A rank that makes the others wait is the pale row among dark ones; its own work is the dark row."
    return Chart(key="heat", title="Waiting, by rank and step", told=told, figure={"data": traces, "layout": layout})


def _ledger(ranks: Sequence[Mapping[str, Any]]) -> Chart | None:
    rows = [row for row in ranks if row.get("ledger")]
    if not rows:
        return None
    numbers = [row["rank"] for row in rows]
    traces = [
        {
            "type": "bar",
            "name": part,
            "x": numbers,
            "y": [round(1e3 * row["ledger"].get(f"{part}_seconds", 0.0), 3) for row in rows],
            "marker": {"color": colour},
            "hovertemplate": f"rank %{{x}}: {part} %{{y:.1f}} ms<extra></extra>",
        }
        for part, colour in PARTS.items()
    ]
    layout = {
        "barmode": "stack",
        "height": 340,
        "xaxis": {"title": {"text": "rank"}, "tickformat": "d", "dtick": 1 if len(rows) <= MOST_BARS else None},
        "yaxis": {"title": {"text": "ms per step"}},
    }
    told = "The parts exclude one another and add up to the mean step; communication is what no computing hides."
    return Chart(key="ledger", title="Where a step's time goes", told=told, figure={"data": traces, "layout": layout})


def _pipeline(pipeline: Mapping[str, Any] | None) -> Chart | None:
    figure = _bubble_figure(pipeline, busy=PARTS["forward"], idle=PARTS["communication"], line=PARTS["data"])
    if figure is None:
        return None
    told = " ".join(f"{text[0].upper()}{text[1:]}." for text in pipeline_texts(pipeline))
    told += " The dashed line is where computing would end with what the schedule alone leaves idle."
    return Chart(key="pipeline", title="Bubble of the pipeline", told=told, figure=figure)


def _bandwidth(groups: Sequence[Mapping[str, Any]]) -> Chart | None:
    rows = [row for row in groups if row.get("bus_gigabytes_per_second")]
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: -float(row["exposed_seconds"]))[:MOST_BARS]
    labels = [f"{row['group']} {row['op']}" for row in rows]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [row["bus_gigabytes_per_second"] for row in rows],
        "y": labels,
        "marker": {"color": STATES["ended"]},
        "text": [f"{row['calls']} calls of {row['bytes_per_call']:,} bytes" for row in rows],
        "textposition": "none",
        "hovertemplate": "%{y}: %{x} GB/s, %{text}<extra></extra>",
    }
    layout = {
        "height": height_of(len(rows)),
        "xaxis": {"title": {"text": "bus bandwidth, GB/s"}},
        "yaxis": {"autorange": "reversed", "automargin": True},
    }
    told = "Of the time that the transfer itself took, waiting for late ranks left out."
    return Chart(key="bandwidth", title="Bandwidth by group", told=told, figure={"data": [trace], "layout": layout})


def _memory(curves: Sequence[Curve], culprits: Iterable[int]) -> Chart | None:
    if not curves:
        return None
    marked = set(culprits)
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"rank {curve.rank}",
            "x": curve.seconds,
            "y": curve.gibibytes,
            "line": {"width": 3 if curve.rank in marked else 1.5},
            "hovertemplate": f"rank {curve.rank}: %{{y:.3f}} GiB at %{{x:.1f}} s<extra></extra>",
        }
        for curve in curves
    ]
    layout = {
        "height": 320,
        "xaxis": {"title": {"text": "seconds"}},
        "yaxis": {"title": {"text": "GiB"}, "rangemode": "tozero"},
        "showlegend": len(curves) <= MOST_BARS,
    }
    told = f"{curves[0].what.capitalize()} of each rank."
    return Chart(key="memory", title="Memory", told=told, figure={"data": traces, "layout": layout})


def _bubble_figure(pipeline: Mapping[str, Any] | None, *, busy: str, idle: str, line: str) -> Figure | None:
    """Return a bar for each stage, what it computes and how long it stands idle, in the given colours.

    A dashed line stands where computing would end with no more than the schedule's own bubble; None without a bubble.
    """
    if pipeline is None or pipeline["bubble"] is None:
        return None
    stages, formula = pipeline["per_stage"], pipeline["bubble"]["formula"]
    shares = {"computing": (busy, [1 - each["bubble"] for each in stages])}
    shares["standing idle"] = (idle, [each["bubble"] for each in stages])
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": [round(100 * share, 2) for share in values],
            "y": [f"stage {each['stage']}" for each in stages],
            "customdata": [named(each["ranks"]) for each in stages],
            "marker": {"color": colour},
            "hovertemplate": f"%{{y}}, %{{customdata}}: {name} %{{x:.1f}} %<extra></extra>",
        }
        for name, (colour, values) in shares.items()
    ]
    layout: Figure = {
        "barmode": "stack",
        "height": min(AROUND_PIXELS + ROW_PIXELS * len(stages), MOST_PIXELS),
        "xaxis": {"title": {"text": "% of the pipeline's time"}, "range": [0, 100]},
        "yaxis": {"autorange": "reversed"},
    }
    if formula is not None:
        at = round(100 * (1 - formula), 2)
        drawn = {"color": line, "width": 2, "dash": "dash"}
        layout["shapes"] = [{"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": drawn}]
    return {"data": traces, "layout": layout}
