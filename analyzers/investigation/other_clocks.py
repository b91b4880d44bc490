"""What a run would look like if clocks of hosts showed other times, where nothing says that they show the right ones.

Clocks that nothing compares, or only coarsely, may be wrong by minutes: one of the hosts may have no time service. What
is found must then be found, too, if they began together, if they ended together, or if they failed together.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd

from distdiag.analyzers._wording import named, seconds
from distdiag.analyzers.investigation.lives import SECOND_NS, Life
from distdiag.analyzers.investigation.rows import records
from distdiag.analyzers.investigation.sources import in_order, only_text
from distdiag.run import Run
from distdiag.run.clocks import SAME_CLOCK_NS
from distdiag.run.frames import TIMES

COARSE_NS = SECOND_NS // 2
"""Clocks that agree better change nothing but what happened at the same moment."""

Shifts = Mapping[int, int]
"""By rank, nanoseconds."""


def at_other_times(run: Run, lives: Mapping[int, Life]) -> Iterator[Run]:
    """Yield the run as other clocks would show it, as far as its own may be that wrong; none where they agree."""
    seen: list[Shifts] = [dict.fromkeys(run.ranks, 0)]
    for shifts in _possible(run, lives):
        if not any(_alike(shifts, other) for other in seen):
            seen.append(shifts)
            yield shifted(run, shifts)


def why_uncertain(run: Run, ranks: Iterable[int] = ()) -> str:
    """Return what is wrong with the clocks of some ranks, in words; without any, of all."""
    error_ns, about = run.quality.clock_error_ns, tuple(ranks) or run.ranks
    if only_text(run) and not in_order(run, about):
        return f"nothing tells the order of what {named(about)} say"
    if error_ns is not None:
        return f"the clocks of their hosts agree to {seconds(error_ns)} only"
    one, *others = run.islands
    return (
        f"nothing compares the clocks of their hosts: {named(one)} and "
        f"{named(rank for island in others for rank in island)} saw no collective end together"
    )


def shifted(run: Run, shifts: Shifts) -> Run:
    """Return a run with all moments of some ranks moved, as if its clocks were right then."""
    moved: dict[str, Any] = {}
    for field in fields(run):
        frame = getattr(run, field.name)
        if isinstance(frame, pd.DataFrame) and len(frame) and "rank" in frame and TIMES & set(frame.columns):
            moved[field.name] = _moved(frame, shifts)
    return replace(run, quality=replace(run.quality, clock_error_ns=0), **moved)


def _moved(frame: pd.DataFrame, shifts: Shifts) -> pd.DataFrame:
    ranks, positions = np.unique(frame["rank"].to_numpy(), return_inverse=True)
    by_row = np.array([shifts.get(rank, 0) for rank in ranks.tolist()], dtype=np.int64)[positions]
    return frame.assign(**{name: frame[name] + by_row for name in frame.columns if name in TIMES})


def _possible(run: Run, lives: Mapping[int, Life]) -> Iterator[Shifts]:
    error_ns = run.quality.clock_error_ns
    if error_ns is None:
        begun = {rank: life.first_ns for rank, life in lives.items()}
        ended = {rank: life.last_ns for rank, life in lives.items()}
        failed = {rank: life.failed_ns for rank, life in lives.items() if life.failed_ns is not None}
        yield _together({island: min(_of(begun, island), default=None) for island in run.islands})
        yield _together({island: max(_of(ended, island), default=None) for island in run.islands})
        yield _together({island: min(_of(failed, island), default=None) for island in run.islands})
    elif error_ns > COARSE_NS:
        first = min(lives.values(), key=lambda life: (life.failed_ns or life.last_ns, life.rank)).rank
        elsewhere = on_other_clocks(run, first)
        for shift in (-error_ns, error_ns):
            yield {rank: shift if rank in elsewhere else 0 for rank in run.ranks}


def _of(moments: Mapping[int, int], island: frozenset[int]) -> list[int]:
    return [moments[rank] for rank in island if rank in moments]


def _together(moments: Mapping[frozenset[int], int | None]) -> Shifts:
    """Return what moves one moment of each island to that of the largest that has one."""
    known = [moment for moment in moments.values() if moment is not None]
    return {rank: known[0] - moment for island, moment in moments.items() if moment is not None for rank in island}


def _alike(one: Shifts, other: Shifts) -> bool:
    return all(abs(shift - other.get(rank, 0)) <= COARSE_NS for rank, shift in one.items())


def on_other_clocks(run: Run, rank: int) -> frozenset[int]:
    """Return the ranks on other hosts than a rank's, and those on its host whose clocks are others nevertheless."""
    clocks = {int(header.rank): header for header in records(run.headers)}
    mine = clocks.get(rank)
    return frozenset(other for other in run.ranks if other != rank and not _same_clock(mine, clocks.get(other)))


def _same_clock(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return False
    apart = (one.wall_ns - one.monotonic_ns) - (other.wall_ns - other.monotonic_ns)
    return bool(one.host == other.host and abs(apart) < SAME_CLOCK_NS)
