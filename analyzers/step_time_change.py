"""From some step on every step takes longer than before.

What it means
    The job trained at one pace and then, at one moment, became slower and stayed so: another job came to the same
    hosts or the same network, a device lowered its clocks, a data set's next part lies on a slower disk, or the
    program itself began to do more.

How it is found
    Levels of the step times are told apart by ranks, not by single long steps, so that pauses for checkpoints and
    evaluation do not count. Reported is the rise that cost most, if the step became at least 1.15 times as long and
    at least 10 ms longer, if at least 20 steps stand on each side of it (40 where it ends again), nearly all of the
    longer ones longer than nearly all that came before, and if it cost at least 2 % of the job's time. It needs 60
    steps. Waiting for a processor is left out. Steps that grew with their work say nothing: where tokens, samples or
    micro-steps of a step rose along, there is no finding; nor is there one for a pace that falls off little by little.
    The column of the step ledger that grew is named. Where one rank's own time grew and the others' did not, that
    rank is; it takes logs that tell the columns.

What to do
    Look at what began at that moment on the ranks that are named: other processes, clocks and temperature of the
    device, errors of the network, the part of the data set that was begun, an option that changes with the step.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers._wording import counted, named, seconds
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.performance.ledger import PARTS
from distdiag.analyzers.slowness.changes import Rise, greatest_rise
from distdiag.analyzers.slowness.grid import Grid, grid_of
from distdiag.analyzers.slowness.judged import judge
from distdiag.analyzers.slowness.laggards import Laggard
from distdiag.analyzers.slowness.telling import percent
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

CODE = "DD213"
NAME = "step-time-change"
ENOUGH_STEPS = 60
SLOWER = 1.15
LEAST_NS = 10e6
MATTERS = 0.02
"""Of the job's time."""
MORE_WORK = 0.5
"""Of the rise: where a step's work grew by so much of it, the work is the reason."""
MOSTLY = 0.5
"""Of the rise, for a part of the step or a rank to have made it."""
LITTLE = 0.25
"""Of the rise: ranks whose own time grew by less did not make it."""
NAMES = {
    "data": "data loading",
    "optimizer": "the optimizer",
    "checkpoint": "writing checkpoints",
    "other": "what lies between the optimizer and the next forward",
    "communication": "communication with nobody late",
}

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What of a step grew; durations in nanoseconds."""

    parts: Mapping[str, float]
    """By how much each part of the ledger grew on the ranks that made the rise, waiting left out."""
    ranks: tuple[int, ...]
    """Those whose own time grew while the others' did not; empty where it did on most, or on none."""

    def main_part(self, rise_ns: float) -> str | None:
        """Return the part that grew most, if it made most of the rise."""
        part = max(self.parts, key=lambda name: self.parts[name])
        return part if self.parts[part] >= MOSTLY * rise_ns else None


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding if steps became longer at some moment, for good or for long."""
    measured = judge(run).measured
    if measured.ledger.empty:
        return
    grid = grid_of(measured.ledger, set(measured.ledger["rank"]))
    if grid is None or len(grid.steps) < ENOUGH_STEPS:
        return
    series = _without_queue(grid)
    rise = greatest_rise(series, factor=SLOWER, least=LEAST_NS)
    if rise is None or rise.excess < MATTERS * series.sum() or _more_work(run, grid, rise):
        return
    grown = None if "shares" in measured.unknown else _grown(grid, rise)
    yield _finding(run, grid, rise, grown, lost=rise.excess / float(series.sum()))


def beside_changes(run: Run, laggards: Iterable[Laggard]) -> Iterator[Laggard]:
    """Yield the laggards but those that are late since a change of the pace, which says so itself."""
    changed: set[int] | None = None
    for laggard in laggards:
        if laggard.seldom and changed is None:
            changed = {rank for finding in analyze(run) for rank in finding.culprits}
        if not laggard.seldom or laggard.rank not in (changed or ()):
            yield laggard


def _without_queue(grid: Grid) -> Numbers:
    """Return the length of each step, less what the rank that waited longest for a processor waited."""
    queued = np.nan_to_num(grid["queued_ns"]).max(axis=0)
    return np.asarray(np.maximum(grid.step_ns - queued, 0.0), dtype=float)


def _more_work(run: Run, grid: Grid, rise: Rise) -> bool:
    """Return whether steps had more to do after the rise: tokens, samples, micro-steps."""
    counts = [pd.Series(grid["tokens"].sum(axis=0), index=grid.steps)]
    counts += [run.steps.groupby("step")[name].sum(min_count=1) for name in ("forwards", "backwards")]
    ended = run.batches[(run.batches["edge"] == "end") & run.batches["samples"].notna()]
    counts.append(ended.groupby("step")["samples"].sum())
    for count in counts:
        work = count.reindex(grid.steps).to_numpy(dtype=float, na_value=np.nan)
        before, after = (_middle(work[part]) for part in (slice(rise.begin, rise.start), slice(rise.start, rise.end)))
        if before > 0 and after / before >= 1 + MORE_WORK * (rise.factor - 1):
            return True
    return False


def _middle(values: Numbers) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _grown(grid: Grid, rise: Rise) -> Grown:
    before, after = slice(rise.begin, rise.start), slice(rise.start, rise.end)

    def growth(values: Numbers) -> Numbers:
        return np.asarray(np.median(values[:, after], axis=1) - np.median(values[:, before], axis=1), dtype=float)

    whole = rise.after - rise.before
    own = growth(grid["own_ns"])
    slower = own >= MOSTLY * whole
    alone = bool(0 < slower.sum() <= len(own) / 2 and (own[~slower] < LITTLE * whole).all())
    rows = np.flatnonzero(slower) if slower.any() else np.arange(len(own))
    columns = {name: grid[f"{name}_ns"] for name in PARTS}
    columns["communication"] = grid["communication_ns"] - grid["waiting_ns"]
    parts = {name: float(np.median(growth(values)[rows])) for name, values in columns.items()}
    return Grown(parts=parts, ranks=tuple(grid.ranks[row] for row in rows) if alone else ())


def _finding(run: Run, grid: Grid, rise: Rise, grown: Grown | None, *, lost: float) -> Finding:
    first, last = int(grid.steps[rise.start]), int(grid.steps[rise.end - 1])
    lasting = rise.end == len(grid.steps)
    span = f"from step {first} on" if lasting else f"from step {first} to {last}"
    rise_ns = rise.after - rise.before
    part = None if grown is None else grown.main_part(rise_ns)
    culprits = () if grown is None else grown.ranks
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=f"{span} a step takes {rise.factor:.2g}x as long as before: {seconds(rise.after)} instead of "
        f"{seconds(rise.before)}\n{_what(grown, part)} That is {percent(lost)} of the job's time.",
        culprits=culprits,
        victims=tuple(rank for rank in grid.ranks if culprits and rank not in culprits),
        step=first,
        cause=part,
        confidence=Confidence.HIGH if part is not None and run.quality.whole else Confidence.MEDIUM,
        evidence=(
            f"middle of {counted(rise.start - rise.begin, 'step')} before: {seconds(rise.before)}, of "
            f"{counted(rise.end - rise.start, 'step')} after: {seconds(rise.after)}",
            *_parts(grown, rise_ns),
            data_in_words(run),
        ),
        action=_action(culprits, part, first),
        lost_share=lost,
    )


def _what(grown: Grown | None, part: str | None) -> str:
    if grown is None:
        return "These logs do not tell which part of the step grew."
    who = f"on {named(grown.ranks)}, for which the others wait" if grown.ranks else "on all ranks alike"
    if part is None:
        return f"No part of the step made most of it{', ' + who if grown.ranks else ''}."
    return f"It is {NAMES.get(part, part)} that grew, by {seconds(grown.parts[part])} {who}."


def _parts(grown: Grown | None, rise_ns: float) -> tuple[str, ...]:
    """Name the parts that grew, the one that grew most first."""
    if grown is None:
        return ()
    longest = sorted(grown.parts.items(), key=lambda each: (-each[1], each[0]))
    said = [f"{name} {seconds(excess)}" for name, excess in longest if excess >= 0.05 * rise_ns]
    return (f"longer than before by: {', '.join(said)}",) if said else ()


def _action(culprits: tuple[int, ...], part: str | None, step: int) -> tuple[str, ...]:
    place = f"the host of {named(culprits)}" if culprits else "the hosts"
    looks = {
        "data": f"which part of the data set begins at step {step}, and where does it lie? is that file system busier",
        "communication": f"look at the network from step {step} on: other jobs, link errors, ports that fell back",
        "checkpoint": f"what does the job write from step {step} on that it did not write before",
    }
    return (
        looks.get(part or "", f"look at {place} from step {step} on: other processes, clocks, temperature, memory"),
        f"does the program do more from step {step} on: a schedule, a longer sequence, an evaluation, a log",
    )
