"""Where the step of each rank goes, in columns: for slow runs, whose ranks all came to the end."""

from collections.abc import Collection, Mapping
from typing import Any

from distdiag.reporters import words
from distdiag.reporters._lines import Line, Span, table

PARTS = ("data", "forward", "backward", "optimizer", "checkpoint", "other")
"""Columns that are shown where they take a notable share of some rank's step."""
NOTABLE = 0.02
MOST_ROWS = 12


def ledger_lines(ranks: Collection[Mapping[str, Any]], culprits: Collection[int], width: int) -> list[Line]:
    """Return one row per rank, culprits and those that others wait for most first; none where shares are unknown."""
    known = [row for row in ranks if row.get("ledger") is not None]
    if not known:
        return []
    shown = [part for part in PARTS if any(_share(row, part) >= NOTABLE for row in known)]
    rows = [("rank", "step", "own", *shown, "transfer", "waits", "is waited for")]
    order = sorted(known, key=lambda row: (row["rank"] not in culprits, -row["waits_caused_seconds"], row["rank"]))
    rows += [_row(row, shown) for row in order[:MOST_ROWS]]
    styles = ["dim", *("bold" if row["rank"] in culprits else "" for row in order[:MOST_ROWS])]
    lines = table(rows, indent=2, width=width, styles=styles)
    if len(order) > MOST_ROWS:
        lines.append((Span(f"  and {len(order) - MOST_ROWS} more ranks: --format json has them all", "dim"),))
    return lines


def _row(row: Mapping[str, Any], shown: Collection[str]) -> tuple[str, ...]:
    ledger, step = row["ledger"], row["step_seconds"]
    return (
        str(row["rank"]),
        words.duration(step),
        words.duration(row["own_step_seconds"]),
        *(words.duration(ledger[f"{part}_seconds"]) for part in shown),
        words.duration(row["communication_share"] * step),
        words.duration(row["wait_share"] * step),
        words.duration(row["waits_caused_seconds"]),
    )


def _share(row: Mapping[str, Any], part: str) -> float:
    return float(row["ledger"][f"{part}_seconds"]) / max(float(row["step_seconds"]), 1e-9)
