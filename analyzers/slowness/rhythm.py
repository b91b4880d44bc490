"""When a rank is late in some steps only: once in so many, or from some step on; a few strays do not hide that."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

REGULAR = 0.8
"""Of the late steps, that come in the rhythm; and of those that it asks for, that are late."""
MOSTLY = 0.6
"""Of neighbouring steps, that have to be late for these to belong to such a part."""
INSIDE = 0.9
"""Of the late steps, that lie in the part of the run in which nearly all steps are; of few all but one."""


class Rhythm(NamedTuple):
    """Late once in ``every`` steps, from ``first`` to ``last``; ``exact`` without any stray."""

    every: int
    first: int
    last: int
    exact: bool


def rhythm_of(late: Sequence[int]) -> Rhythm | None:
    """Return the rhythm of steps, in order; None where they have none."""
    gaps = [after - before for before, after in pairwise(late)]
    every = max(sorted(set(gaps)), key=gaps.count, default=0)
    if every < 2:
        return _span(np.asarray(late)) if every else None
    steps = np.asarray(late)
    phase = np.bincount(steps % every).max()
    asked = (steps[-1] - steps[0]) // every + 1
    again = gaps.count(every) >= REGULAR * len(gaps)
    if again or phase >= REGULAR * max(len(steps), asked):
        return Rhythm(every, late[0], late[-1], gaps.count(every) == len(gaps))
    return None


def _span(late: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> Rhythm | None:
    """Return the part of the run in which nearly all steps are late, if it holds nearly all that are."""
    is_late = np.isin(np.arange(late[0], late[-1] + 1), late)
    # The part in which what is late outweighs what is not: that of the greatest sum.
    sums = np.concatenate([[0.0], np.cumsum(np.where(is_late, 1 - MOSTLY, -MOSTLY))])
    first = int((np.maximum.accumulate(sums[:0:-1])[::-1] - sums[:-1]).argmax())
    last = first + int(sums[first + 1 :].argmax())
    inside = int(is_late[first : last + 1].sum())
    if inside < max(min(INSIDE * len(late), len(late) - 1), REGULAR * (last + 1 - first)):
        return None
    return Rhythm(1, int(late[0]) + first, int(late[0]) + last, inside == len(late) == last + 1 - first)
