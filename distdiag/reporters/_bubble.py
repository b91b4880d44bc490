"""The bubble of each pipeline stage as a figure for Plotly."""

from collections.abc import Mapping
from typing import Any

from distdiag.wording import named

Figure = dict[str, Any]
ROW_PIXELS, AROUND_PIXELS, MOST_PIXELS = 26, 160, 900


def bubble_figure(pipeline: Mapping[str, Any] | None, *, busy: str, idle: str, line: str) -> Figure | None:
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
