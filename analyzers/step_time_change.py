"""From some step on, or little by little, steps take longer than before.

What it means
    The job trained at one pace and then, at one moment, became slower and stayed so: another job came to the same
    hosts or the same network, a device lowered its clocks, a data set's next part lies on a slower disk, or the
    program itself began to do more. Or steps become longer and longer: something that the program goes through in each
    of them grows, as a list, a graph, a log or the heap does.

How it is found
    Levels of the step times are told apart by ranks, not by single long steps, so that pauses for checkpoints and
    evaluation do not count. Reported is the rise that cost most, if the step became at least 1.15 times as long and
    at least 10 ms longer, if at least 20 steps stand on each side of it (40 where it ends again), nearly all of the
    longer ones longer than nearly all that came before, and if it cost at least 2 % of the job's time. It needs 60
    steps. Waiting for a processor is left out. Steps that grew with their work say nothing: where tokens, samples or
    micro-steps of a step rose along, there is no finding. Without such a moment steps have to have grown all along, in
    each quarter of the run and beyond what they scatter, until they are 1.3 times as long, and by 10 ms.
    The column of the step ledger that grew is named. Where one rank's own time grew and the others' did not, that
    rank is; it takes logs that tell the columns. A rank that is named for being late already is not named again.

What to do
    Look at what began at that moment on the ranks that are named: other processes, clocks and temperature of the
    device, errors of the network, the part of the data set that was begun, an option that changes with the step. For
    steps that grow all along: profile an early and a late one, and look at what grew with the number of steps.
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
from distdiag.analyzers.slowness.sites import site_of_batches
from distdiag.analyzers.slowness.telling import percent
from distdiag.analyzers.training.series import steady_growth
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

CODE = "DD213"
NAME = "step-time-change"
ENOUGH_STEPS = 60
SLOWER = 1.15
LEAST_NS = 10e6
CREPT = 0.3
"""Of the first steps' length, by which those have grown that become longer little by little."""
MATTERS = 0.02
"""Of the job's time."""
MORE_WORK = 0.5
"""Of the rise: where a step's work grew by so much of it, the work is the reason."""
MOSTLY = 0.5
"""Of the rise, for a part of the step or a rank to have made it."""
NEARLY = 0.7
"""Of what the part that grew most grew by: where another grew by so much, neither made the rise alone."""
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
        """Return the part that grew most, if it made most of the rise, and no other grew nearly as much."""
        second, part = sorted(self.parts, key=lambda name: self.parts[name])[-2:]
        most = max(MOSTLY * rise_ns, self.parts[second] / NEARLY)
        return part if self.parts[part] >= most else None


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding if steps became longer at some moment, for good or for long, or all along."""
    judged = judge(run)
    measured = judged.measured
    if measured.ledger.empty:
        return
    grid = grid_of(measured.ledger, set(measured.ledger["rank"]))
    if grid is None or len(grid.steps) < ENOUGH_STEPS:
        return
    series = _without_queue(grid)
    sudden = greatest_rise(series, factor=SLOWER, least=LEAST_NS)
    rise = sudden or _crept(grid, series)
    if rise is None or rise.excess < MATTERS * series.sum() or _more_work(run, grid, rise):
        return
    grown = None if "shares" in measured.unknown else _grown(grid, rise)
    late = {laggard.rank for _, laggard in judged.laggards}
    if sudden is None and grown is not None and late.intersection(grown.ranks or grid.ranks):
        return
    yield _finding(run, grid, rise, grown, lost=rise.excess / float(series.sum()), crept=sudden is None)


def changes_of_data(run: Run) -> Iterator[Finding]:
    """Yield the change of the pace that is one of data loading on all ranks alike."""
    return (each for each in analyze(run) if each.cause == "data" and not each.culprits)


def _crept(grid: Grid, series: Numbers) -> Rise | None:
    """Return both halves of a series that grows all along, as if it rose from one to the other."""
    growth = steady_growth(grid.steps.astype(float), series, at_least=LEAST_NS, share=CREPT)
    if growth is None:
        return None
    middle, end = len(series) // 2, len(series)
    before, after = (float(np.median(half)) for half in (series[:middle], series[middle:]))
    return Rise(begin=0, start=middle, end=end, before=before, after=after)


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
    ended = run.batches[run.batches["edge"] == "end"].groupby("step")
    counts += [ended[name].sum(min_count=1) for name in ("samples", "positions")]
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


def _finding(run: Run, grid: Grid, rise: Rise, grown: Grown | None, *, lost: float, crept: bool) -> Finding:
    first, last = int(grid.steps[rise.start]), int(grid.steps[rise.end - 1])
    lasting = rise.end == len(grid.steps)
    span = f"from step {first} {'on' if lasting else f'to {last}'} a step takes {rise.factor:.2g}x as long as before: "
    span += f"{seconds(rise.after)} instead of {seconds(rise.before)}"
    if crept:
        span = f"steps take longer and longer: {seconds(rise.before)} in the first half of the run, "
        span += f"{seconds(rise.after)} in the second, {rise.factor:.2g}x as long"
    rise_ns = rise.after - rise.before
    part = None if grown is None else grown.main_part(rise_ns)
    culprits = () if grown is None else grown.ranks
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=f"{span}\n{_what(grown, part)} That is {percent(lost)} of the job's time.",
        culprits=culprits,
        victims=tuple(rank for rank in grid.ranks if culprits and rank not in culprits),
        step=None if crept else first,
        site=site_of_batches(run) if part == "data" else None,
        cause=part,
        confidence=Confidence.HIGH if part is not None and run.quality.whole else Confidence.MEDIUM,
        evidence=(
            f"middle of {counted(rise.start - rise.begin, 'step')} before: {seconds(rise.before)}, of "
            f"{counted(rise.end - rise.start, 'step')} after: {seconds(rise.after)}",
            *_parts(grown, rise_ns),
            data_in_words(run),
        ),
        action=_action(culprits, part, None if crept else first),
        lost_share=lost,
    )


def _what(grown: Grown | None, part: str | None) -> str:
    if grown is None:
        return "These logs do not tell which part of the step grew."
    who = f"on {named(grown.ranks)}, for which the others wait" if grown.ranks else "on all ranks alike"
    if part is None:
        most = sorted(grown.parts.items(), key=lambda each: -each[1])[:2]
        said = ", ".join(f"{NAMES.get(name, name)} grew by {seconds(excess)}" for name, excess in most if excess > 0)
        return f"No part of the step made most of it{', ' + who if grown.ranks else ''}{': ' if said else ''}{said}."
    return f"It is {NAMES.get(part, part)} that grew, by {seconds(grown.parts[part])} {who}."


def _parts(grown: Grown | None, rise_ns: float) -> tuple[str, ...]:
    """Name the parts that grew, the one that grew most first."""
    if grown is None:
        return ()
    longest = sorted(grown.parts.items(), key=lambda each: (-each[1], each[0]))
    said = [f"{name} {seconds(excess)}" for name, excess in longest if excess >= 0.05 * rise_ns]
    return (f"longer than before by: {', '.join(said)}",) if said else ()


def _action(culprits: tuple[int, ...], part: str | None, step: int | None) -> tuple[str, ...]:
    if step is None:
        return (
            "look at what grows with the number of steps and is gone through in each: a list of losses or metrics, a "
            "graph that is kept (retain_graph, tensors without detach()), a log that is read again, the heap",
            "profile an early and a late step (py-spy record --pid, or the PyTorch profiler), and compare them",
            "or does each step have more to do, and is it meant so: longer samples, a part of the model that joins in?",
        )
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
