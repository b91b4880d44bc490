"""Ranks that others wait for, in nearly every step or long in some, and the part of the step that makes them late.

Own time is what a rank does itself: its step without what calls held it up, and without its waiting for a processor,
which on shared cores is nobody's doing. It needs no clock but the rank's own, and an all-reduce, which makes all
backwards look equally long, does not equalise it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distdiag.analyzers.performance import Measured
from distdiag.analyzers.performance.ledger import PARTS
from distdiag.analyzers.slowness.grid import Chosen, Grid, Numbers, of_others
from distdiag.analyzers.slowness.rhythm import rhythm_of

ENOUGH_STEPS = 10
"""Beside the warm-up; of fewer, chance makes a rank the last one again and again."""
LATE_STEPS = 0.8
"""Share of the steps in which a laggard is late: a lasting cause, not noise on shared cores."""
SLOWER_BY = 0.1
"""Of the step: less is within what equal ranks differ by."""
LEAST_NS = 5e6
"""Ranks that share cores differ by less than this without a reason."""
WAITED_FOR = 0.5
"""The others' waiting has to be at least so much of what a laggard is late by: else nobody minds."""
WORTH = 0.1
"""Of the step, what mending all laggards has to gain: else others are as slow now and then, as on shared cores."""
OWN_PARTS = tuple(name for name in PARTS if name != "communication")
MAIN_PART = 0.5
"""A part of the step that holds at least so much of the lateness is where it comes from."""
TOGETHER = 0.8
"""Of the steps in which one of two ranks is late now and then, for them to be late together."""
ENOUGH_LATE_STEPS = 5
"""Of a rank that is late now and then: fewer are hiccups, however long."""
COSTLY = 0.2
"""Of the job's time, lost to a rank that is late now and then: less is what a log or a save of one rank may take."""
COSTLY_AGAIN = 0.12
"""The same where it comes once in so many steps, which chance does not."""
ALONE = 0.8
"""Of what all ranks cost by being late now and then, for one of them to be no chance, as on a noisy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laggard:
    """A rank that others wait for; durations are medians over the steps in which it is late, in nanoseconds.

    Of one that is late in nearly every step they are medians over all steps.
    """

    rank: int
    peers: tuple[int, ...]
    own_ns: float
    typical_ns: float
    late_by_ns: float
    late_steps: tuple[int, ...]
    """Numbers of the steps."""
    steps: int
    seldom: bool
    """Whether it is late in some steps only."""
    also: tuple[int, ...]
    """Other laggards."""
    first_step: int
    step_ns: float
    """Of one that is late now and then the mean."""
    gain_ns: float
    """By how much a step would be shorter if this and all other laggards were as fast as their peers."""
    caused_ns: float
    """Waiting of all others for it, summed over the run."""
    course_ns: tuple[float, float]
    """By what it is late in the first and in the last quarter of these steps."""
    parts_ns: Mapping[str, float]
    """By how much each part of its step is longer than its peers'."""
    gc_ns: float
    compile_ns: float
    cpu_ns: float

    @property
    def part(self) -> str | None:
        """Return the part of the step that makes it late, None if it is spread over several."""
        part = max(self.parts_ns, key=lambda name: self.parts_ns[name])
        return part if self.parts_ns[part] >= MAIN_PART * self.late_by_ns else None


def laggards_in(grid: Grid, measured: Measured) -> list[Laggard]:
    """Return the laggards among ranks of one role, the latest first."""
    if len(grid.ranks) < 2 or len(grid.steps) < ENOUGH_STEPS:
        return []
    own = grid["own_ns"]
    excess = own - of_others(own)
    late = excess >= np.maximum(LEAST_NS, SLOWER_BY * grid.step_ns)
    return _lasting(grid, measured, excess, late) or _seldom(grid, measured, excess, late)


def _lasting(grid: Grid, measured: Measured, excess: Numbers, late: Chosen) -> list[Laggard]:
    """Return the ranks that are late in nearly every step."""
    own = grid["own_ns"]
    # A processor that is fought over slows a rank by more than the queue for it: locks are held by who does not run.
    queued = np.median(np.nan_to_num(grid["queued_ns"]), axis=1)
    rows = [
        row
        for row in range(len(grid.ranks))
        if late[row].mean() >= LATE_STEPS
        and np.median(excess[row]) >= queued[row]
        and _is_its_own(grid, row, excess[row])
    ]
    gain = _gain(own, rows)
    if not rows or np.median(gain) < WORTH * np.median(grid.step_ns):
        return []
    every = np.ones(len(grid.steps), dtype=bool)
    found = [_laggard(grid, row, every, late[row], measured, also=rows, gain_ns=float(np.median(gain))) for row in rows]
    # Of two that come at the same moment only one is the last, so they are waited for together.
    if sum(each.caused_ns for each in found) < WAITED_FOR * max(each.late_by_ns for each in found) * len(grid.steps):
        return []
    return sorted(found, key=lambda each: (-each.late_by_ns, each.rank))


def _seldom(grid: Grid, measured: Measured, excess: Numbers, late: Chosen) -> list[Laggard]:
    """Return the rank that is late in some steps only, but so long that it costs much of the job's time.

    Those that are late in the same steps are told with it: mending one of them alone would gain nothing.
    """
    own = grid["own_ns"]
    late = late & (excess >= np.nan_to_num(grid["queued_ns"]))
    first = int((excess * late).sum(axis=1).argmax())
    together = (late & late[first]).sum(axis=1) >= TOGETHER * (late | late[first]).sum(axis=1)
    if not late[first].any() or 2 * together.sum() > len(own):
        return []
    rows = np.flatnonzero(together).tolist()
    lost = _gain(own, rows) * late[first]
    to_others = _lost_to_single_ranks(own, late & ~together[:, np.newaxis])
    cost, at = float(lost.sum()), lost > 0
    rhythm = rhythm_of(grid.steps[at].tolist())
    costly = (COSTLY_AGAIN if rhythm is not None and rhythm.every > 1 else COSTLY) * float(grid.step_ns.sum())
    if at.sum() < ENOUGH_LATE_STEPS or cost < max(costly, ALONE * (cost + to_others)):
        return []
    found = [_laggard(grid, row, at, at, measured, also=rows, gain_ns=cost / len(at)) for row in rows]
    its_own = all(_is_its_own(grid.at(at), row, excess[row][at]) for row in rows)
    if sum(each.caused_ns for each in found) < WAITED_FOR * cost or not its_own:
        return []
    return sorted(found, key=lambda each: (-each.late_by_ns, each.rank))


def _lost_to_single_ranks(own: Numbers, late: Chosen) -> float:
    """Return what steps lose to the rank that is the last in them, where it is late."""
    last, columns = own.argmax(axis=0), np.arange(own.shape[1])
    second = np.partition(own, -2, axis=0)[-2]
    return float(((own[last, columns] - second) * late[last, columns]).sum())


def _is_its_own(grid: Grid, row: int, excess: Numbers) -> bool:
    """Return whether a rank is late by itself: where nothing tells how long it waited for a processor, it has to have
    computed longer, or waited for data."""
    if not np.isnan(grid["queued_ns"][row]).all() or np.isnan(grid["cpu_ns"]).any():
        return True
    explained = max(_difference(grid["cpu_ns"], row), _difference(grid["data_ns"], row))
    return explained >= MAIN_PART * float(np.median(excess))


def _laggard(
    whole: Grid, row: int, chosen: Chosen, late: Chosen, measured: Measured, *, also: list[int], gain_ns: float
) -> Laggard:
    """Return what is known of a laggard from the chosen steps, [steps]."""
    rank, grid, seldom = whole.ranks[row], whole.at(chosen), not chosen.all()
    differences = {name: _difference(grid[f"{name}_ns"], row) for name in OWN_PARTS}
    excess = (grid["own_ns"] - of_others(grid["own_ns"]))[row]
    quarter = -(-len(excess) // 4)
    return Laggard(
        rank=rank,
        peers=tuple(other for other in grid.ranks if other != rank),
        own_ns=float(np.median(grid["own_ns"][row])),
        typical_ns=float(np.median(of_others(grid["own_ns"])[row])),
        late_by_ns=_difference(grid["own_ns"], row),
        late_steps=tuple(int(step) for step in whole.steps[late]),
        steps=len(whole.steps),
        seldom=seldom,
        also=tuple(whole.ranks[other] for other in also if other != row),
        first_step=int(grid.steps[0]),
        step_ns=float(whole.step_ns.mean() if seldom else np.median(grid.step_ns)),
        gain_ns=gain_ns,
        caused_ns=float(measured.ranks["caused_ns"].get(rank, 0)),
        course_ns=(float(np.median(excess[:quarter])), float(np.median(excess[-quarter:]))),
        parts_ns=differences,
        gc_ns=_difference(grid["gc_ns"], row, mean=True),
        compile_ns=_difference(grid["compile_ns"], row, mean=True),
        cpu_ns=float(np.median(grid["cpu_ns"][row])),
    )


def _difference(values: Numbers, row: int, *, mean: bool = False) -> float:
    over = np.mean if mean else np.median
    return float(over(values[row] - of_others(values)[row]))


def _gain(own: Numbers, rows: list[int]) -> Numbers:
    """Return by how much each step would be shorter without laggards: the slowest of the others sets the pace then."""
    others = np.delete(own, rows, axis=0)
    if not len(others):
        return np.zeros(own.shape[1])
    return np.asarray(np.maximum(0.0, own.max(axis=0) - others.max(axis=0)), dtype=float)
