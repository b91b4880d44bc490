"""A chart of a report: a figure for Plotly, which is a plain dictionary of traces and a layout, and its words."""

from dataclasses import dataclass
from typing import Any

CULPRIT, VICTIM = "#d23f31", "#6f9fd8"
ROW_PIXELS = 22
MOST_ROW_PIXELS = 900
Figure = dict[str, Any]


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
