"""How a series of numbers goes on: what jumps out of it, and whether it grows without end."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]

WINDOW = 50
FEWEST_BEFORE = 20
"""Values before a jump that tell what is usual."""
ABOVE_THE_HIGHEST = 1.2
"""Some series alternate between a few levels: a jump is above all of them."""
SMALLEST_SPREAD = 0.01
"""Relative; a series that hardly moved has no spread of its own."""
NORMAL_QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""

FEWEST_SAMPLES = 12
WARM_UP_SHARE = 0.2
"""Caches fill and allocators reach their size in the beginning."""
BANDS = 4
STEADY = 0.4
"""Each part of a series that grows without end does so at least at this share of the overall pace."""
ABOVE_THE_NOISE = 5.0
MOST_SAMPLES = 300
"""Of longer series evenly spread samples count: pairs of all would take too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """A value that is far above those before it."""

    step: int
    value: float
    usual: float
    """Median of the values before."""
    spreads: float
    """How many times the usual change from one value to the next it is above that, on a logarithmic scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A series that grows steadily, by the slope of Theil and Sen: the median over all pairs of samples."""

    per_step: float
    first_step: int
    last_step: int
    first: float
    last: float

    @property
    def steps(self) -> int:
        """Return over how many steps it was seen to grow."""
        return self.last_step - self.first_step


def first_jump(values: "pd.Series[float]", *, factor: float, spreads: float) -> Jump | None:
    """Return the first value, by step, that is ``factor`` times and so many ``spreads`` above what is usual.

    None where values are not all positive: then nothing is a multiple of anything.
    """
    if len(values) <= FEWEST_BEFORE or not (values > 0).all():
        return None
    ordered = values.sort_index().astype("float64")
    logs: pd.Series[float] = pd.Series(np.log(ordered.to_numpy()), index=ordered.index)
    usual = logs.rolling(WINDOW, min_periods=FEWEST_BEFORE).median().shift()
    # Changes, because a loss that comes down quickly is spread over much.
    changes = logs.diff().rolling(WINDOW, min_periods=FEWEST_BEFORE - 1)
    spread = ((changes.quantile(0.75) - changes.quantile(0.25)) / NORMAL_QUARTILES).shift().clip(lower=SMALLEST_SPREAD)
    highest = logs.rolling(2 * WINDOW, min_periods=1).max().shift()
    above = logs - usual
    jumps = (above >= np.log(factor)) & (above >= spreads * spread) & (logs >= highest + np.log(ABOVE_THE_HIGHEST))
    if not jumps.any():
        return None
    step = jumps.idxmax()
    return Jump(
        step=int(str(step)),
        value=float(ordered[step]),
        usual=float(np.exp(usual[step])),
        spreads=float(above[step] / spread[step]),
    )


def steady_growth(steps: Floats, values: Floats, *, at_least: float, share: float) -> Growth | None:
    """Return how a series grows, if it does so steadily after its warm-up; None otherwise.

    ``at_least`` and ``share`` (of the first value) are what it has to have grown by.
    """
    order = np.argsort(steps, kind="stable")[int(len(steps) * WARM_UP_SHARE) :]
    x, y = steps[order].astype(np.float64), values[order].astype(np.float64)
    if len(x) < FEWEST_SAMPLES:
        return None
    if len(x) > MOST_SAMPLES:
        chosen = np.linspace(0, len(x) - 1, MOST_SAMPLES).astype(int)
        x, y = x[chosen], y[chosen]
    slope = theil_sen(x, y)
    total = slope * (x[-1] - x[0])
    noise = 1.4826 * float(np.median(np.abs(y - slope * x - np.median(y - slope * x))))
    if total < max(at_least, share * y[0], ABOVE_THE_NOISE * noise):
        return None
    bands = np.array_split(np.arange(len(x)), BANDS)
    middles = [(float(np.median(x[part])), float(np.median(y[part]))) for part in bands]
    for (x0, y0), (x1, y1) in pairwise(middles):
        if y1 - y0 < STEADY * slope * (x1 - x0):
            return None
    return Growth(per_step=slope, first_step=int(x[0]), last_step=int(x[-1]), first=float(y[0]), last=float(y[-1]))


def theil_sen(x: Floats, y: Floats) -> float:
    """Return the median slope over all pairs of points (Theil 1950, Sen 1968); 0 where there is none."""
    i, j = np.triu_indices(len(x), k=1)
    run = x[j] - x[i]
    rising = run > 0
    return float(np.median((y[j] - y[i])[rising] / run[rising])) if rising.any() else 0.0
