"""A watched job as a screen of lines, in the width and height that there are."""

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from distdiag.live.snapshot import RankDetail, RankRow, Snapshot
from distdiag.reporters._lines import BLANK, Line, Span, shorten, table, wrap
from distdiag.reporters.words import duration
from distdiag.wording import basename, named

MANY_RANKS = 64
"""More are folded by node, unless somebody wants to see each."""
NARROW = 110
"""Columns below which a table leaves some out."""
STRIP_ROWS = 8
GROUP_ROWS = 4
HEALTH_LINES = 3
HEAT = " .:-=+*#%@"
"""From as fast as the median rank of that step to twice as slow."""
STATE_STYLES = {"runs": "green", "waits": "yellow", "stalled": "bold red", "silent": "bold red", "died": "bold red"}
SORTS = ("trouble", "rank", "step", "still", "memory")
KEYS = "q quit  s sort: {sort}  f filter  n {fold}  p {pause}  j/k move  enter open"
INSIDE_KEYS = "esc back  j/k next rank  p pause  q quit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What somebody wants to see."""

    sort: str = "trouble"
    filter: str = ""
    typing: bool = False
    """The filter is being typed."""
    paused: bool = False
    by_node: bool | None = None
    """None for what the number of ranks suggests."""
    selected: int = 0
    """Row of the table."""
    opened: int | None = None
    """Rank that is looked at closely."""


def screen(snapshot: Snapshot, choice: Choice, width: int, height: int, detail: RankDetail | None = None) -> list[Line]:
    """Return the lines of a screen; never more than ``height``, none wider than ``width``."""
    lines = [*_heading(snapshot, choice, width), BLANK]
    row = next((row for row in snapshot.ranks if row.rank == choice.opened), None)
    if row is not None:
        body = _opened(row, detail, width)
        keys = INSIDE_KEYS
    else:
        body = _overview(snapshot, choice, width, height - len(lines) - 1)
        keys = KEYS.format(
            sort=choice.sort,
            fold="each rank" if is_folded(snapshot, choice) else "by node",
            pause="go on" if choice.paused else "pause",
        )
    if choice.typing:
        keys = f"filter: {choice.filter}_  (enter to apply, esc to leave out)"
    lines = [*lines, *body][: height - 1]
    lines += [BLANK] * (height - 1 - len(lines))
    return [_cut(line, width) for line in (*lines, (Span(keys, "dim"),))]


def plain_view(snapshot: Snapshot, width: int) -> list[Line]:
    """Return the overview for a file or a pipe: all of it, without keys."""
    height = len(snapshot.ranks) + len(snapshot.groups) + STRIP_ROWS + 40
    body = _overview(snapshot, Choice(selected=-1), width, height)
    while body and body[-1] == BLANK:
        body.pop()
    return [_cut(line, width) for line in (*_heading(snapshot, Choice(), width), BLANK, *body)]


def status(snapshot: Snapshot) -> str:
    """Return the state of a job in one line of text."""
    return f"{_clock(snapshot)}  {_progress(snapshot)}  {snapshot.health}"


def is_folded(snapshot: Snapshot, choice: Choice) -> bool:
    """Return whether ranks are shown by node."""
    return choice.by_node if choice.by_node is not None else snapshot.size > MANY_RANKS


def shown_ranks(snapshot: Snapshot, choice: Choice) -> list[RankRow]:
    """Return the rows of the table in their order: the ranks, or of each node the one in most trouble."""
    wanted = choice.filter.lower()
    rows = [row for row in snapshot.ranks if not wanted or wanted in _searched(row)]
    rows.sort(key=_ORDERS[choice.sort])
    if not is_folded(snapshot, choice):
        return rows
    first: dict[str, RankRow] = {}
    for row in rows:
        first.setdefault(row.host, row)
    return list(first.values())


def _searched(row: RankRow) -> str:
    return f"{row.rank} {row.host} {row.state} {row.phase} {row.doing} {row.where or ''}".lower()


_ORDERS: dict[str, Callable[[RankRow], tuple[float, int]]] = {
    "trouble": lambda row: (-row.trouble, row.rank),
    "rank": lambda row: (0.0, row.rank),
    "step": lambda row: (float(row.step), row.rank),
    "still": lambda row: (-row.still_seconds, row.rank),
    "memory": lambda row: (-float(row.memory_bytes or 0), row.rank),
}


def _heading(snapshot: Snapshot, choice: Choice, width: int) -> list[Line]:
    title = f"{'PAUSED' if choice.paused else 'distdiag'} {_clock(snapshot)}  {_progress(snapshot)}"
    bad = bool(snapshot.alarms)
    style = "bold red" if bad else "bold green" if snapshot.health == "healthy" else "bold yellow"
    health = wrap(snapshot.health, width)
    if len(health) > HEALTH_LINES:
        health = [*health[: HEALTH_LINES - 1], shorten(health[HEALTH_LINES - 1] + " ..", width)]
    lines: list[Line] = [(Span(title, "bold"),), *((Span(line, style),) for line in health)]
    lines += [(Span(note, "yellow"),) for note in snapshot.notes]
    return lines


def _progress(snapshot: Snapshot) -> str:
    parts = [f"{snapshot.size}/{snapshot.world_size} ranks" if snapshot.world_size else "no ranks"]
    if snapshot.attempt:
        parts.append(f"attempt {snapshot.attempt}")
    if snapshot.step is not None:
        parts.append(f"step {snapshot.step}")
    if snapshot.steps_per_second is not None:
        parts.append(_rate(snapshot.steps_per_second, "steps"))
    if snapshot.tokens_per_second is not None:
        parts.append(_rate(snapshot.tokens_per_second, "tokens"))
    if snapshot.remaining_seconds is not None:
        parts.append(f"{duration(snapshot.remaining_seconds)} left")
    return "  ".join(parts)


def _rate(rate: float, what: str) -> str:
    if rate >= 100:
        return f"{rate / 1000:.0f}k {what}/s" if rate >= 100_000 else f"{rate:,.0f} {what}/s"
    return f"{rate:.3g} {what}/s" if rate >= 0.1 or not rate else f"{1 / rate:.0f} s/{what.removesuffix('s')}"


def _clock(snapshot: Snapshot) -> str:
    return time.strftime("%H:%M:%S", time.localtime(snapshot.wall_ns / 1e9))


def _overview(snapshot: Snapshot, choice: Choice, width: int, height: int) -> list[Line]:
    below = [*_groups(snapshot, width), *_strip(snapshot, choice, width), *_alarms(snapshot, width)]
    room = max(height - 1 - min(len(below), height // 2), 3)
    return [*_ranks(snapshot, choice, width, room), BLANK, *below]


def _ranks(snapshot: Snapshot, choice: Choice, width: int, room: int) -> list[Line]:
    rows = shown_ranks(snapshot, choice)
    if not rows:
        return [(Span("no rank matches the filter" if snapshot.ranks else "no ranks yet", "dim"),)]
    size = snapshot.hosts or Counter(row.host for row in snapshot.ranks)
    folded = is_folded(snapshot, choice)
    count = max(room - 2, 1)
    begin = min(max(choice.selected - count + 1, 0), max(len(rows) - count, 0))
    part = rows[begin : begin + count]
    heading = ["node" if folded else "rank", "worst" if folded else "host", "step", "state", "doing", "where"]
    heading += ["still", "late", "waits", "causes", "memory", "pulse"]
    cells = [heading]
    for row in part:
        first = [f"{row.host} ({size[row.host]})", f"{row.rank}"] if folded else [f"{row.rank}", row.host]
        cells.append([*first, *_cells(row)])
    if width < NARROW:  # what can be missed first
        one_host = not folded and len({row.host for row in snapshot.ranks}) == 1
        left_out = {"where", "waits", "host"} if one_host else {"where", "waits"}
        kept = [column for column, name in enumerate(heading) if name not in left_out]
        cells = [[row[column] for column in kept] for row in cells]
    styles = ["bold"]
    for number, row in enumerate(part, begin):
        styles.append("reverse" if number == choice.selected else STATE_STYLES.get(row.state, ""))
    lines = table(cells, indent=0, width=width, styles=styles)
    hidden = len(rows) - len(part)
    if hidden:
        lines.append((Span(f"{hidden} more {'nodes' if folded else 'ranks'}", "dim"),))
    return lines


def _cells(row: RankRow) -> list[str]:
    doing = row.doing.removeprefix("waits in ").removeprefix("is in ")
    return [
        f"{row.step}",
        row.state,
        doing,
        basename(row.where) if row.where else "-",
        f"{duration(row.still_seconds)}",
        "-" if row.lateness_seconds is None else duration(row.lateness_seconds),
        "-" if row.suffered is None else f"{row.suffered:.0%}",
        "-" if row.caused is None else f"{row.caused:.0%}",
        "-" if row.memory_bytes is None else f"{row.memory_bytes / 2**30:.1f}G",
        f"{row.pulse_seconds:.0f} s",
    ]


def _groups(snapshot: Snapshot, width: int) -> list[Line]:
    troubled = sorted(snapshot.groups, key=lambda row: (row.parted_at is None, -len(row.behind), row.group))
    lines: list[Line] = []
    for row in troubled[:GROUP_ROWS]:
        text = f"{row.group} ({row.members}: {row.ranks}) at {row.newest}"
        if row.parted_at is not None:
            text += f", calls differ since {row.parted_at}"
        elif row.behind:
            most = max(row.behind.values())
            text += f", {named(row.behind)} up to {most} behind"
        lines.append((Span("groups  " if not lines else " " * 8, "bold"), Span(shorten(text, max(width - 8, 20)))))
    if len(troubled) > GROUP_ROWS:
        lines.append((Span(f"        and {len(troubled) - GROUP_ROWS} more", "dim"),))
    return lines


def _strip(snapshot: Snapshot, choice: Choice, width: int) -> list[Line]:
    rows = [row for row in shown_ranks(snapshot, choice) if row.strip][:STRIP_ROWS]
    if len(rows) < 2:
        return []
    times: dict[int, list[float]] = {}
    for row in snapshot.ranks:
        for step, seconds in row.strip:
            times.setdefault(step, []).append(seconds)
    last = max(step for row in rows for step, _ in row.strip)
    columns = max(width - 20, 8)
    steps = [step for step in sorted(times) if step > last - columns]
    typical = {step: statistics.median(times[step]) for step in steps}
    label = f"own time of the last {len(steps)} steps, ' ' typical, '@' twice that"
    lines: list[Line] = [(Span(shorten(label, width), "bold"),)]
    for row in rows:
        known = dict(row.strip)
        marks = "".join(_mark(known.get(step), typical[step]) for step in steps)
        lines.append((Span(f"{row.rank:>6}  |"), Span(marks, "red"), Span("|")))
    return lines


def _mark(seconds: float | None, typical: float) -> str:
    if seconds is None or typical <= 0:
        return "?" if seconds is None else " "
    excess = min(max(seconds / typical - 1.0, 0.0), 1.0)
    return HEAT[round(excess * (len(HEAT) - 1))]


def _alarms(snapshot: Snapshot, width: int) -> list[Line]:
    lines: list[Line] = []
    for alarm in snapshot.alarms:
        age = duration(max(snapshot.wall_ns - alarm.raised_wall_ns, 0) / 1e9)
        texts = [f"{alarm.kind} for {age}", *alarm.condition.evidence[:2]]
        verdict = alarm.verdict
        if verdict:
            site = f", {basename(str(verdict['site']))}" if verdict.get("site") else ""
            texts.append(f"verdict {verdict['name']}: {str(verdict['summary']).splitlines()[0]}{site}")
            texts += [f"next: {step}" for step in verdict.get("next_steps", [])[:1]]
        for number, text in enumerate(texts):
            lines.append((Span("alarm   " if not number else " " * 8, "bold red"), Span(shorten(text, width - 8))))
    return lines


def _opened(row: RankRow, detail: RankDetail | None, width: int) -> list[Line]:
    lines: list[Line] = [
        (Span(f"rank {row.rank} on {row.host}, process {row.pid}", "bold"),),
        (
            Span(
                f"{row.state}: {row.doing}, step {row.step}, still for {duration(row.still_seconds)} "
                f"(limit {duration(row.limit_seconds)})"
            ),
        ),
    ]
    if detail is None:
        return lines
    if detail.facts:
        facts = "  ".join(f"{name}={value}" for name, value in detail.facts.items())
        lines.append((Span(shorten(facts, width), "dim"),))
    lines += [(Span(shorten(fault, width), "bold red"),) for fault in detail.faults]
    if detail.frames:
        lines += [BLANK, (Span("main thread, user code, innermost first", "bold"),)]
        lines += [(Span(f"  {shorten(basename(frame), width - 2)}"),) for frame in reversed(detail.frames)]
    for thread, frames in detail.stack:
        age = duration(max(detail.stack_seconds or 0.0, 0.0))
        lines += [BLANK, (Span(f"stack of {thread} ({detail.stack_reason}, {age} ago), innermost first", "bold"),)]
        lines += [(Span(f"  {shorten(basename(frame), width - 2)}"),) for frame in reversed(frames)]
    if not detail.stack:
        lines += [BLANK, (Span("no stack yet: distdiag ctl LOGS stacks asks every rank for one", "dim"),)]
    return lines


def _cut(line: Line, width: int) -> Line:
    left, spans = width, []
    for span in line:
        spans.append(Span(span.text[:left], span.style))
        left -= len(spans[-1].text)
    return tuple(spans)
