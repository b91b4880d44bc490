"""Where time goes, in lines: steps of ranks in columns, kinds of calls, and what mending each part would gain."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from distdiag import wording
from distdiag.reporters import words
from distdiag.reporters._lines import BLANK, GAP, Line, Span, hang_all, table, wrap
from distdiag.wording import fold

TITLE = "Profiler traces"
LEGEND = (
    "neither: copies and communication alone; overlap: communication that computing hides; exposed: communication "
    "that it does not, of the window"
)
MOST_NOTES = 6
NOTABLE_PCT = 50.0
"""A rank that came last less often is not worth a sentence."""
NOTABLE_SHARE = 0.01
"""Waiting that is less of the window neither."""
_CAUSES = {"host_wait": "the host", "kernel_wait": "short gaps", "other_wait": "other streams"}
_HEADING: tuple[str, ...] = ("rank", "window", "idle", "compute", "neither", "overlap", "exposed", "idle most for")
PARTS = ("data", "forward", "backward", "optimizer", "checkpoint", "other")
"""Columns that are shown where they take a notable share of some rank's step."""
NOTABLE = 0.02
MOST_ROWS = 12
LABEL = 15
MOST_FIXES = 6
LEAST_GAIN = 0.005
"""What gives less is not worth a row."""
INDENT = 2
MOST_STAGES = 16
STANDS_OUT = 1.1
LONG_SECONDS = 100


def profile_lines(profiles: Sequence[Mapping[str, Any]], width: int) -> list[Line]:
    """Return the table of the traces' shares, who came last, and what they do not tell."""
    if not profiles:
        return []
    lines: list[Line] = [(Span(TITLE, "bold"),)]
    told = [row for row in profiles if row["window_us"]]
    if told:
        lines += _table(told, width)
    if len(told) > MOST_ROWS:
        lines.append((Span(f"  and {len(told) - MOST_ROWS} more: --format json has them all", "dim"),))
    if told:
        lines += [(Span(f"  {line}", "dim"),) for line in wrap(LEGEND, width - 2)]
    for sentence in (*_reasons(profiles), *_last(profiles), *_notes(profiles)):
        lines += [(Span("  "), Span(line)) for line in wrap(sentence, width - 2)]
    return lines


def _table(profiles: Sequence[Mapping[str, Any]], width: int) -> list[Line]:
    shown = profiles[:MOST_ROWS]
    files = Counter(row["file"] for row in profiles)
    several = len({row["rank"] for row in profiles}) < len(profiles)
    rows = [(*_HEADING, "trace")] if several else [_HEADING]
    rows += [(*_cells(row), *([_place(row, files)] if several else [])) for row in shown]
    return table(rows, indent=2, width=width, styles=["dim", *[""] * len(shown)])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    shares = (_percent(row[f"{name}_pct"]) for name in ("idle", "compute", "non_compute", "overlap", "exposed"))
    window = words.duration(row["window_us"] / 1e6)
    return (str(row["rank"]), window, *shares, _cause(row))


def _place(row: Mapping[str, Any], files: Mapping[str, int]) -> str:
    return f"device {row['device']} in {row['file']}" if files[row["file"]] > 1 else str(row["file"])


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1f} %"


def _cause(row: Mapping[str, Any]) -> str:
    shares = {name: row["idle_waits"][f"{name}_pct"] for name in _CAUSES}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return "-"
    most = max(known, key=lambda name: known[name])
    return f"{_CAUSES[most]} {known[most]:.0f} %"


def _reasons(profiles: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return why ranks have no shares."""
    ranks: dict[str, set[int]] = {}
    for row in profiles:
        for name in ("idle_pct", "overlap_pct"):
            if (reason := row["unknown"].get(name)) is not None:
                what = "no shares" if name == "idle_pct" else "no overlap"
                ranks.setdefault(f"{what}: {reason}", set()).add(row["rank"])
                break
    return [f"{wording.named(of)}: {reason}" for reason, of in ranks.items()]


def _notes(profiles: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what limits the numbers, each with the ranks it is true of."""
    ranks: dict[str, set[int]] = {}
    for row in profiles:
        for note in row["notes"]:
            if note not in row["unknown"].values():
                ranks.setdefault(note, set()).add(row["rank"])
    return [f"{wording.named(of)}: {note}" for note, of in list(ranks.items())[:MOST_NOTES]]


def _last(profiles: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return which rank the others waited for most, if that is worth a sentence."""
    told = [row for row in profiles if row["waiting"] is not None]
    if not told:
        return []
    row = max(told, key=lambda each: (each["waiting"]["waits_caused_us"], -each["rank"]))
    waiting = row["waiting"]
    caused = waiting["waits_caused_us"]
    if waiting["came_last_pct"] < NOTABLE_PCT or caused < NOTABLE_SHARE * row["window_us"]:
        return []
    others = wording.named(rank for rank in waiting["ranks"] if rank != row["rank"])
    return [
        f"rank {row['rank']} came last in {waiting['came_last_pct']:.0f} % of {waiting['collectives']} collectives; "
        f"{others} waited {words.duration(caused / 1e6)} for it"
    ]


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
    shown = list(zip(told["by_stage"], numbers, strict=True))[:MOST_STAGES]
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
