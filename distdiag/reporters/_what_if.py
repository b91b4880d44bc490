"""The simulations of a job for people: what is lost, what mending each part would give, and which worker it is."""

from collections.abc import Iterable, Mapping
from typing import Any

from distdiag.reporters import words
from distdiag.reporters._lines import BLANK, GAP, Line, Span, hang_all, table, wrap
from distdiag.wording import fold

LABEL = 15
MOST_FIXES = 6
LEAST_GAIN = 0.005
"""What gives less is not worth a row."""
INDENT = 2
MOST_ROWS = 16
STANDS_OUT = 1.1
LONG_SECONDS = 100


def what_if_lines(told: Mapping[str, Any] | None, width: int) -> list[Line]:
    """Return the block of the report, or no line where nothing was simulated."""
    if told is None:
        return []
    return [*_lost(told, width), *_fixes(told, width), *_heat_map(told, width)]


def what_if_line(told: Mapping[str, Any] | None) -> str:
    """Return the whole answer as one sentence."""
    if told is None:
        return ""
    ideal, seconds = _time(told["ideal_step_seconds"]), _time(told["step_seconds"])
    if told["waste"] < LEAST_GAIN:
        return f"a step takes {seconds}, as long as if all operations of a kind took the same time"
    return (
        f"a step takes {seconds}; if all operations of a kind took the same time, it would take {ideal} "
        f"({told['slowdown']:.2f}x)"
    )


def _lost(told: Mapping[str, Any], width: int) -> list[Line]:
    texts = [what_if_line(told)]
    if told["gpu_hours"] is not None and told["waste"] >= LEAST_GAIN:
        texts.append(
            f"{_hours(told['gpu_hours_wasted'])} of the {_hours(told['gpu_hours'])} GPU-hours of these {told['steps']} "
            f"steps on {told['devices']} devices are lost by that"
        )
    delay = told["launch_delay"]
    if delay is not None and delay - 1 >= LEAST_GAIN:
        texts.append(f"beside it, {delay - 1:.1%} pass between operations, where the host launches them late")
    if told["left_out"]:
        texts.append(f"operations that were left out: {', '.join(told['left_out'])}")
    return hang_all("What if", texts, indent=LABEL, width=width)


def _fixes(told: Mapping[str, Any], width: int) -> list[Line]:
    fixes = [fix for fix in told["fixing"] if fix["gain"] >= LEAST_GAIN][:MOST_FIXES]
    if not fixes:
        return []
    rows = [("at its usual pace", "a step takes", "gain", "ranks")]
    rows += [(fix["what"], _time(fix["step_seconds"]), f"{fix['gain']:.1%}", fold(fix["ranks"])) for fix in fixes]
    return [BLANK, *table(rows, indent=INDENT, width=width, styles=["dim", *("" for _ in fixes)])]


def _heat_map(told: Mapping[str, Any], width: int) -> list[Line]:
    """Return the slowdown of each worker: one cell that stands out is a worker, a row a stage, many sequences."""
    numbers = told["worker_slowdowns"]
    if told["stages"] * told["data_parallel_ranks"] < 2 or told["slowdown"] < STANDS_OUT:
        return []
    names = list(told["by_data_parallel_rank"])
    room = (width - INDENT - len("stage")) // (max(len(f"dp {name}") for name in names) + GAP)
    slowest = sorted(range(len(names)), key=lambda column: (-max(row[column] for row in numbers), column))
    columns = sorted(slowest[: max(1, room)])
    shown = list(zip(told["by_stage"], numbers, strict=True))[:MOST_ROWS]
    rows = [("stage", *(f"dp {names[column]}" for column in columns))]
    rows += [(str(stage), *(f"{row[column]:.2f}" for column in columns)) for stage, row in shown]
    styles = ["dim", *_styles(row for _, row in shown)]
    of = f", the {len(columns)} slowest columns of {len(names)}" if len(columns) < len(names) else ""
    title = f"slowdown of each worker: its stage or its data-parallel rank alone, the lesser{of}"
    titles = [(Span(" " * INDENT), Span(line, "dim")) for line in wrap(title, width - INDENT)]
    return [BLANK, *titles, *table(rows, indent=INDENT, width=width, styles=styles)]


def _styles(rows: Iterable[list[float]]) -> list[str]:
    return ["bold" if max(row) >= STANDS_OUT else "" for row in rows]


def _time(seconds: float) -> str:
    """Write a step's time with three digits: what mending gives is often a few percent."""
    return f"{seconds:.3g} s" if 1 <= seconds < LONG_SECONDS else words.duration(seconds)


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours >= 1 else f"{hours:.2g}"
