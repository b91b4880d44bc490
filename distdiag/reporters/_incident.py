"""The calls around an incident, rank by rank."""

from collections.abc import Iterable, Mapping, Sequence

from distdiag.findings import Report, Span
from distdiag.reporters._chart import CULPRIT, Chart, Figure, height_of

STATES = {"ended": "#6f9fd8", "failed": "#e0a526", "open": "#d23f31"}
STATE_NAMES = {"ended": "ended", "failed": "failed", "open": "never ended"}
MOST_JOINED = 300
"""Collectives whose members are joined by a line in the timeline, the newest."""
AFTER_SHARE = 0.25
"""How much of the timeline's width what came after the incident gets at first."""


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
