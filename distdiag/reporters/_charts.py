"""The charts of a report, as figures for Plotly: plain dictionaries of traces and a layout."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdiag.findings import Arrow, Curve, Heat, Report, Span
from distdiag.reporters._bubble import bubble_figure
from distdiag.reporters._pipeline import pipeline_texts
from distdiag.reporters.words import fold

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
STATES = {"ended": "#6f9fd8", "failed": "#e0a526", "open": "#d23f31"}
STATE_NAMES = {"ended": "ended", "failed": "failed", "open": "never ended"}
CULPRIT, VICTIM = "#d23f31", "#6f9fd8"
ROW_PIXELS = 22
MOST_ROW_PIXELS = 900
MOST_CLASSES = 40
MOST_BARS = 24
MOST_JOINED = 300
"""Collectives whose members are joined by a line in the timeline, the newest."""
AFTER_SHARE = 0.25
"""How much of the timeline's width what came after the incident gets at first."""

Figure = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure with what it shows, in words."""

    key: str
    title: str
    told: str
    figure: Figure


def charts_of(report: Report) -> list[Chart]:
    """Return the charts that a report has data for, in the order in which one reads them."""
    pictures = report.pictures
    if pictures is None:
        return []
    drawn = (
        _timeline(pictures.spans, pictures.incident_seconds, report),
        _waiting(pictures.arrows, report),
        _heat(pictures.heat),
        _ledger(report.performance.get("ranks") or ()),
        _pipeline(report.performance.get("pipeline")),
        _bandwidth(report.performance.get("groups") or ()),
        _memory(pictures.curves, report.verdict.culprits),
    )
    return [chart for chart in drawn if chart is not None]


def _height(rows: int) -> int:
    return min(140 + ROW_PIXELS * rows, MOST_ROW_PIXELS)


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
        "height": max(260, _height(min(len(heat.ranks), 30))),
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
    figure = bubble_figure(pipeline, busy=PARTS["forward"], idle=PARTS["communication"], line=PARTS["data"])
    if figure is None:
        return None
    told = " ".join(f"{text[0].upper()}{text[1:]}." for text in pipeline_texts(pipeline))
    told += " The dashed line is where computing would end with what the schedule alone leaves idle."
    return Chart(key="pipeline", title="Bubble of the pipeline", told=told, figure=figure)


def _timeline(spans: Sequence[Span], incident: float | None, report: Report) -> Chart | None:
    if not spans:
        return None
    ranks = sorted({span.rank for span in spans})
    rows = {rank: position for position, rank in enumerate(ranks)}
    traces: list[Figure] = [_bars(state, [span for span in spans if span.state == state], rows) for state in STATES]
    traces.append(_joined(spans, rows))
    culprits = set(report.verdict.culprits)
    known_ends = [span.end_seconds for span in spans if span.state != "open"]
    last = max([*known_ends, *(span.start_seconds for span in spans)])
    layout: Figure = {
        "height": _height(len(ranks)),
        "barmode": "overlay",
        "bargap": 0.35,
        "xaxis": {"title": {"text": "seconds"}, "range": [-0.02 * last, last * (1 + AFTER_SHARE) or 1.0]},
        "yaxis": {
            "autorange": "reversed",
            "tickvals": list(rows.values()),
            "ticktext": [f"<b>rank {rank} ◀</b>" if rank in culprits else f"rank {rank}" for rank in ranks],
        },
        "dragmode": "pan",
    }
    if incident is not None:
        layout["shapes"] = [
            {
                "type": "line",
                "x0": incident,
                "x1": incident,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": CULPRIT, "dash": "dot"},
            }
        ]
    told = "Calls of the last steps; a line joins the members of a collective. Drag to move, zoom with the buttons."
    return Chart(
        key="timeline",
        title="Around the incident",
        told=told,
        figure={"data": [t for t in traces if t["y"]], "layout": layout},
    )


def _bars(state: str, spans: Sequence[Span], rows: Mapping[int, int]) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": STATE_NAMES[state],
        "base": [round(span.start_seconds, 6) for span in spans],
        "x": [round(span.end_seconds - span.start_seconds, 6) for span in spans],
        "y": [rows[span.rank] for span in spans],
        "text": [f"{span.label}<br>group {span.group}" for span in spans],
        "textposition": "none",
        "marker": {"color": STATES[state], "line": {"width": 1, "color": STATES[state]}},
        "hovertemplate": "rank %{y}: %{text}<br>from %{base:.4f} s for %{x:.4f} s<extra></extra>",
    }


def _joined(spans: Iterable[Span], rows: Mapping[int, int]) -> Figure:
    """Return a line through the begins of each collective, from rank to rank."""
    members: dict[int, list[Span]] = {}
    for span in spans:
        if span.operation >= 0:
            members.setdefault(span.operation, []).append(span)
    several = sorted((each for each in members.values() if len(each) > 1), key=lambda each: each[0].start_seconds)
    x: list[float | None] = []
    y: list[float | None] = []
    for each in several[-MOST_JOINED:]:
        ordered = sorted(each, key=lambda span: span.rank)
        x += [round(span.start_seconds, 6) for span in ordered] + [None]
        y += [rows[span.rank] for span in ordered] + [None]
    line = {"color": "#808890", "width": 1}
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "one collective",
        "x": x,
        "y": y,
        "line": line,
        "hoverinfo": "skip",
    }


def _waiting(arrows: Sequence[Arrow], report: Report) -> Chart | None:
    """Draw who waits for whom: ranks that wait in the same operations are one node, sinks stand at the right."""
    if not arrows:
        return None
    roles: dict[tuple[frozenset[int], frozenset[int]], list[int]] = {}
    for rank in sorted({rank for arrow in arrows for rank in (*arrow.waiters, *arrow.absent)}):
        waits = frozenset(number for number, arrow in enumerate(arrows) if rank in arrow.waiters)
        needed = frozenset(number for number, arrow in enumerate(arrows) if rank in arrow.absent)
        roles.setdefault((waits, needed), []).append(rank)
    nodes = list(roles)[:MOST_CLASSES]
    edges = {
        (waiter, other): sorted(nodes[waiter][0] & nodes[other][1])
        for waiter in range(len(nodes))
        for other in range(len(nodes))
        if waiter != other and nodes[waiter][0] & nodes[other][1]
    }
    place = _placed(len(nodes), edges)
    culprits = set(report.verdict.culprits)
    names = [f"rank{'s' * (len(roles[node]) > 1)} {fold(roles[node])}" for node in nodes]
    markers: Figure = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [place[number][0] for number in range(len(nodes))],
        "y": [place[number][1] for number in range(len(nodes))],
        "text": names,
        "textposition": "top center",
        "hoverinfo": "text",
        "marker": {"size": 22, "color": [CULPRIT if culprits & set(roles[node]) else VICTIM for node in nodes]},
    }
    annotations = [
        {
            "x": place[other][0],
            "y": place[other][1],
            "ax": place[waiter][0],
            "ay": place[waiter][1],
            "xref": "x",
            "yref": "y",
            "axref": "x",
            "ayref": "y",
            "arrowhead": 2,
            "standoff": 14,
            "startstandoff": 14,
            "text": "",
            "hovertext": arrows[operations[0]].operation,
        }
        for (waiter, other), operations in edges.items()
    ]
    hidden = {"visible": False}
    depth = 1 + max(y for _, y in place.values()) - min(y for _, y in place.values())
    layout = {
        "height": min(200 + 60 * round(depth), MOST_ROW_PIXELS),
        "xaxis": hidden | {"range": [min(x for x, _ in place.values()) - 0.6, 0.6]},
        "yaxis": hidden | {"range": [min(y for _, y in place.values()) - 0.8, max(y for _, y in place.values()) + 0.8]},
        "annotations": annotations,
        "showlegend": False,
    }
    told = "; ".join(
        f"{fold(a.waiters)} wait{'s' * (len(a.waiters) == 1)} for {fold(a.absent)} in {a.operation}" for a in arrows[:4]
    )
    return Chart(
        key="waiting", title="Who waits for whom", told=told + ".", figure={"data": [markers], "layout": layout}
    )


def _placed(count: int, edges: Iterable[tuple[int, int]]) -> dict[int, tuple[float, float]]:
    """Return a place for each node: as many columns left of the right edge as its shortest way to a sink is long."""
    edges = list(edges)
    waiting = {waiter for waiter, _ in edges}
    distance = {node: 0 for node in range(count) if node not in waiting} or {0: 0}
    grown = True
    while grown:
        grown = False
        for waiter, other in edges:
            if other in distance and waiter not in distance:
                distance[waiter] = distance[other] + 1
                grown = True
    columns: dict[int, list[int]] = {}
    for node in range(count):
        columns.setdefault(distance.get(node, 0), []).append(node)
    return {
        node: (-float(column), (len(inside) - 1) / 2 - row)
        for column, inside in columns.items()
        for row, node in enumerate(inside)
    }


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
        "height": _height(len(rows)),
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
