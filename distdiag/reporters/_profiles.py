"""What profiler traces say, as a table: one row for each device of a trace."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from distdiag import wording
from distdiag.reporters import words
from distdiag.reporters._lines import Line, Span, table, wrap

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
