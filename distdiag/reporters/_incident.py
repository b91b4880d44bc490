"""Charts of an incident: the calls around it, rank by rank, and who waits for whom, as a graph.

A chart is a figure for Plotly, which is a plain dictionary of traces and a layout, and its words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdiag.findings import Arrow, Report, Span
from distdiag.wording import fold

CULPRIT, VICTIM = "#d23f31", "#6f9fd8"
ROW_PIXELS = 22
MOST_ROW_PIXELS = 900
Figure = dict[str, Any]
STATES = {"ended": "#6f9fd8", "failed": "#e0a526", "open": "#d23f31"}
STATE_NAMES = {"ended": "ended", "failed": "failed", "open": "never ended"}
MOST_JOINED = 300
"""Collectives whose members are joined by a line in the timeline, the newest."""
AFTER_SHARE = 0.25
"""How much of the timeline's width what came after the incident gets at first."""
MOST_CLASSES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure with what it shows, in words."""

    key: str
    title: str
    told: str
    figure: Figure


def height_of(rows: int) -> int:
    """Return the height of a chart with so many rows, in pixels."""
    return min(140 + ROW_PIXELS * rows, MOST_ROW_PIXELS)


def timeline_chart(spans: Sequence[Span], incident: float | None, report: Report) -> Chart | None:
    """Draw the calls of the last steps, with a line at the moment of the incident where that is known."""
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
        "height": height_of(len(ranks)),
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


def waiting_chart(arrows: Sequence[Arrow], report: Report) -> Chart | None:
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
        _arrow(place[waiter], place[other], arrows[operations[0]].operation)
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


def _arrow(begin: tuple[float, float], end: tuple[float, float], operation: str) -> Figure:
    return {
        "x": end[0],
        "y": end[1],
        "ax": begin[0],
        "ay": begin[1],
        "xref": "x",
        "yref": "y",
        "axref": "x",
        "ayref": "y",
        "arrowhead": 2,
        "standoff": 14,
        "startstandoff": 14,
        "text": "",
        "hovertext": operation,
    }


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
