"""Lasting changes of a series' level: where it is higher for good, not where single values jump.

A level changes where ranks of values before and after differ most (Pettitt 1979, "A non-parametric approach to the
change-point problem"), looked for again in both parts (binary segmentation). Ranks and medians make single long
values, as pauses for checkpoints and evaluation are, count for little.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd

Numbers = npt.NDArray[np.float64]

LEAST_SEGMENT = 20
"""Values of one level: fewer are a hiccup."""
LEAST_EPISODE = 40
"""Values of a higher level that ends again: what wanders comes back sooner."""
CHANCE = 3e-3
"""Only a first sieve: values of neighbouring steps are alike, so a change has to be great, too."""
SAME_LEVEL = 1.05
"""Levels nearer to one another are one."""
MOST_LEVELS = 50
MOST = 0.9
"""Of the values of a level."""
NEAR = 10
"""Values on each side of a change that show whether it is sudden."""
REFINEMENTS = 2
SPREADS = 3.5
"""Standard deviations of the values of a level by which the next one has to be higher."""
SUDDEN = 0.6
"""Of the rise, that has to happen between those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """A level that is higher than the one before it; positions in the series, ``end`` excluded."""

    begin: int
    start: int
    """Where the lower level began, and the higher one."""
    end: int
    before: float
    after: float
    """Medians."""

    @property
    def factor(self) -> float:
        """Return by which the level rose."""
        return self.after / self.before

    @property
    def excess(self) -> float:
        """Return what the higher level adds up to beyond the lower one."""
        return (self.after - self.before) * (self.end - self.start)


def greatest_rise(series: Numbers, *, factor: float, least: float) -> Rise | None:
    """Return the rise with the greatest excess among those by at least a ``factor`` and by ``least``.

    It has to be sudden, and nearly all values of the higher level have to lie above nearly all that came before:
    what swings or drifts has been there before, or comes there little by little.
    """
    bounds = levels_of(series)
    rises = [
        Rise(
            begin=begin,
            start=start,
            end=end,
            before=float(np.median(series[begin:start])),
            after=float(np.median(series[start:end])),
        )
        for begin, start, end in zip(bounds, bounds[1:], bounds[2:], strict=False)
    ]
    fit = [
        rise
        for rise in rises
        if rise.before > 0
        and rise.factor >= factor
        and rise.after - rise.before >= least
        and (rise.end == len(series) or rise.end - rise.start >= LEAST_EPISODE)
        and np.quantile(series[: rise.start], MOST) < np.quantile(series[rise.start : rise.end], 1 - MOST)
        and _is_sudden(series, rise)
        and _stands_out(series, rise)
    ]
    return max(fit, key=lambda rise: rise.excess, default=None)


def _is_sudden(series: Numbers, rise: Rise) -> bool:
    near = np.median(series[rise.start : rise.start + NEAR]) - np.median(series[rise.start - NEAR : rise.start])
    return bool(near >= SUDDEN * (rise.after - rise.before))


def _stands_out(series: Numbers, rise: Rise) -> bool:
    """Return whether the rise is more than what the values scatter, by their median deviation (1.48 of a normal's)."""
    parts = series[rise.begin : rise.start], series[rise.start : rise.end]
    scatter = np.mean([np.median(np.abs(part - np.median(part))) for part in parts])
    return bool(rise.after - rise.before >= SPREADS * 1.4826 * scatter)


def levels_of(series: Numbers) -> list[int]:
    """Return where the levels of a series begin, and its length last."""
    inner: list[int] = []
    parts = [(0, len(series))]
    while parts and len(inner) < MOST_LEVELS:
        begin, end = parts.pop()
        found = _change(series[begin:end])
        if found is not None:
            _, place, _ = _refined(series, [begin, begin + found, end])
            inner.append(place)
            parts += [(begin, place), (place, end)]
    return _merged(series, _refined(series, [0, *sorted(inner), len(series)]))


def _change(series: Numbers) -> int | None:
    """Return where the level of a series changes most, None where that may be chance."""
    count = len(series)
    if count < 2 * LEAST_SEGMENT:
        return None
    made = np.arange(1, count)
    sums = np.abs(2 * np.cumsum(pd.Series(series).rank().to_numpy())[:-1] - made * (count + 1))
    inside = sums[LEAST_SEGMENT - 1 : count - LEAST_SEGMENT]
    place = int(inside.argmax()) + LEAST_SEGMENT
    greatest = float(inside.max())
    chance = 2 * np.exp(-6 * greatest**2 / (count**3 + count**2))
    return place if chance < CHANCE else None


def _refined(series: Numbers, bounds: list[int]) -> list[int]:
    """Put each change where both levels fit their values best: single long values draw the ranks' choice away."""
    refined = list(bounds)
    for _ in range(REFINEMENTS):
        for position in range(1, len(bounds) - 1):
            begin, place, end = refined[position - 1 : position + 2]
            before, after = (np.median(part) for part in (series[begin:place], series[place:end]))
            part = series[begin:end]
            # Distance from the levels if all values before each place are of the first one.
            misfit = np.cumsum(np.abs(part - before) - np.abs(part - after))[LEAST_SEGMENT - 1 : -LEAST_SEGMENT]
            if len(misfit):
                refined[position] = begin + LEAST_SEGMENT + int(misfit.argmin())
    return refined


def _merged(series: Numbers, bounds: list[int]) -> list[int]:
    """Join neighbouring levels that are nearly the same, the nearest first."""
    while len(bounds) > 2:
        levels = [float(np.median(series[begin:end])) for begin, end in pairwise(bounds)]
        ratios = [max(a, b) / max(min(a, b), 1e-12) for a, b in pairwise(levels)]
        nearest = int(np.argmin(ratios))
        if ratios[nearest] >= SAME_LEVEL:
            break
        bounds = bounds[: nearest + 1] + bounds[nearest + 2 :]
    return bounds
