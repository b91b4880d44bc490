"""How far the tokens that ranks got explain that some of them take longer than others.

Work on a sequence grows with its length and, in attention, with its square: the own time of a rank's step is fitted as
``a + b * sum(length) + c * sum(length ** 2)``. Steps differ for many reasons that all ranks share, so what is fitted is
how a rank differs from the others in the same step. Where experts are spread over ranks, a rank's tokens are those that
its experts get.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from distdiag.analyzers.investigation.paths import location
from distdiag.analyzers.slowness.grid import Chosen, Grid, Numbers
from distdiag.run import Run

EXPLAINS = 0.8
"""Share of the variance that the fit has to explain."""
MATTERS = 0.1
"""Share of the steps' time that everybody waits for the slowest: less is not worth a change."""
LEAST_NS = 5e6
ENOUGH_STEPS = 10
TOLD = 0.8
"""Share of steps of which all ranks told their tokens: now and then one forgets to."""
MORE_THAN_ALL = 1.5
"""Work in proportion to tokens takes no more than all of the time; a fit by which it would take so many times that much
has only found that the rank with a few more tokens is slow for another reason."""
ALIKE = 0.9
"""Correlation of forward and backward from which unequal work is likely where nobody told the lengths."""
UNEVEN = 0.1
"""Coefficient of variation of the forward within a rank that even work stays below (0.02-0.03 in published traces)."""
EXCHANGED = 0.8
"""Share of steps in which all ranks made such an exchange: one that is skipped is no reason to forget it."""
BACKWARD = "backward"
"""Gradients go the way that tokens came: they are no more tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What the calls of one line bring to the ranks of a grid."""

    op: str
    site: str
    """``file:line``."""
    rows: Numbers
    """[ranks, steps]; NaN where a rank made none in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imbalance:
    """That the slowest rank of each step is the one with the most to do; durations in nanoseconds per step."""

    explained: float
    """R squared of the fit, or the correlation of forward and backward."""
    told: bool
    """The lengths or tokens were recorded."""
    squares: bool
    """The fit has a quadratic term."""
    most_over_mean: float | None
    """Tokens of the rank with the most, over the mean of all, as the median over steps."""
    lost_ns: float
    step_ns: float
    steps: int
    slowest: tuple[tuple[int, int], ...]
    """Rank, and the number of steps in which it was the slowest, most first."""
    routed: Arrivals | None = None
    """The exchange that brings the tokens, where they are those of experts."""


def lost_in(grid: Grid) -> Numbers:
    """Return per step by how much its slowest rank is slower than a typical one."""
    own = grid["own_ns"]
    return np.asarray(own.max(axis=0) - np.median(own, axis=0), dtype=float)


def imbalance_in(grid: Grid, arrivals: Iterable[Arrivals] = ()) -> Imbalance | None:
    """Return the imbalance among ranks of one role, None where there is none or nothing explains it.

    ``arrivals`` are asked for where what was told of tokens and lengths does not explain it.
    """
    if len(grid.ranks) < 2 or len(grid.steps) < ENOUGH_STEPS:
        return None
    lost = lost_in(grid)
    if lost.mean() < max(LEAST_NS, MATTERS * grid.step_ns.mean()):
        return None
    explained, columns = explained_by(grid), _told(grid)[1]
    if explained is not None and explained >= EXPLAINS:
        return _imbalance(grid, lost, explained, columns)
    fits = [(fit, routed) for routed in arrivals if (fit := _in_proportion(grid["own_ns"], routed.rows)) is not None]
    best, routed = max(fits, key=lambda each: each[0], default=(0.0, None))
    if routed is not None and best >= EXPLAINS:
        return _imbalance(grid, lost, best, [routed.rows], routed)
    alike = None if columns else _alike(grid)
    return _imbalance(grid, lost, alike, []) if alike is not None and alike >= ALIKE else None


def explained_by(grid: Grid) -> float | None:
    """Return R squared of a fit of own times by what was told of lengths, else of tokens; None where nothing was."""
    known, columns = _told(grid)
    return _fitted(grid["own_ns"][:, known], columns) if columns else None


def _told(grid: Grid) -> tuple[Chosen, list[Numbers]]:
    """Return the steps in which all ranks told lengths, else tokens, and these; none where too few steps tell."""
    for names in (("length", "length_squared"), ("tokens",)):
        known = np.logical_and.reduce([~np.isnan(grid[name]).any(axis=0) for name in names])
        if known.mean() >= TOLD and known.sum() >= ENOUGH_STEPS:
            return known, [grid[name][:, known] for name in names]
    return np.zeros(len(grid.steps), dtype=bool), []


def _imbalance(
    grid: Grid, lost: Numbers, explained: float, columns: list[Numbers], routed: Arrivals | None = None
) -> Imbalance:
    winners, counts = np.unique(grid["own_ns"].argmax(axis=0), return_counts=True)
    ranked = sorted(zip(winners.tolist(), counts.tolist(), strict=True), key=lambda each: (-each[1], each[0]))
    return Imbalance(
        explained=explained,
        told=bool(columns),
        squares=len(columns) > 1,
        most_over_mean=float(np.nanmedian(columns[0].max(axis=0) / columns[0].mean(axis=0))) if columns else None,
        lost_ns=float(lost.mean()),
        step_ns=float(grid.step_ns.mean()),
        steps=len(grid.steps),
        slowest=tuple((grid.ranks[row], count) for row, count in ranked),
        routed=routed,
    )


def _in_proportion(own: Numbers, rows: Numbers) -> float | None:
    """Return what numbers of tokens explain, None where the ranks differ by more than these can make them differ."""
    known = ~np.isnan(rows).any(axis=0)
    own, rows = own[:, known], rows[:, known]
    target, feature = own - own.mean(axis=0), rows - rows.mean(axis=0)
    if not feature.any():
        return None
    slope = float((target * feature).sum() / np.square(feature).sum())
    return _fitted(own, [rows]) if slope * rows.mean() <= MORE_THAN_ALL * own.mean() else None


def _fitted(own: Numbers, columns: list[Numbers]) -> float | None:
    """Return R squared of the fit on deviations from the step's mean; None where more tokens do not take longer."""
    target = (own - own.mean(axis=0)).ravel()
    features = np.stack([(column - column.mean(axis=0)).ravel() for column in columns], axis=1)
    scale = features.std(axis=0)
    if not target.std() or not scale.all():
        return None
    features = features / scale
    weights, *_ = np.linalg.lstsq(features, target, rcond=None)
    fitted = features @ weights
    if np.corrcoef(fitted, features[:, 0])[0, 1] <= 0:
        return None
    return float(1 - np.square(target - fitted).sum() / np.square(target).sum())


def _alike(grid: Grid) -> float | None:
    """Return how forward and backward go together within a rank, as the median over ranks; None for even work.

    Deviations from the step's median, so that a busy machine, which slows all ranks in the same steps, is no evidence;
    and what the ranks' processors did has to go the same way, so that waiting for a core is none either.
    """
    forward, backward, cpu = (
        grid[name] - np.median(grid[name], axis=0) for name in ("forward_ns", "backward_ns", "cpu_ns")
    )
    uneven = np.median(grid["forward_ns"].std(axis=1) / np.maximum(grid["forward_ns"].mean(axis=1), 1.0))
    if uneven < UNEVEN or np.isnan(cpu).any():
        return None
    together = [_correlation(a, b) for a, b in zip(forward, backward, strict=True)]
    worked = [_correlation(a, b) for a, b in zip(forward + backward, cpu, strict=True)]
    return float(min(np.median(together), np.median(worked)))


def _correlation(one: Numbers, other: Numbers) -> float:
    if not one.std() or not other.std():
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def arrivals_in(run: Run, grid: Grid) -> Iterator[Arrivals]:
    """Yield what exchanges with sizes of their own bring to each rank; none of which many steps of ranks lack."""
    of_grid = (run.calls["phase"] != BACKWARD).to_numpy() & run.calls["rank"].isin(grid.ranks).to_numpy()
    calls = run.calls.loc[of_grid, ["op", "path", "rank", "step", "output_splits"]]
    calls = calls[calls["step"].isin(grid.steps) & calls["output_splits"].map(bool).astype(bool)]
    if calls.empty:
        return
    arrived = calls["output_splits"].map(sum).astype("float64")
    sums = arrived.groupby([calls["op"].astype(str), calls["path"], calls["rank"], calls["step"]]).sum()
    for key, rows in sums.groupby(level=[0, 1], sort=True):
        op, path = cast("tuple[str, int]", key)
        table = rows.droplevel([0, 1]).unstack().reindex(index=list(grid.ranks), columns=grid.steps.tolist())
        frames = run.paths.get(path, ())
        if frames and table.notna().all().mean() >= EXCHANGED:
            yield Arrivals(op=op, site=location(frames[-1]), rows=np.asarray(table, dtype=float))
