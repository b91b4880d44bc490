"""Who is slow: time of its own per step, and who waits for whom."""

import statistics
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from distdiag.live.alarms import Condition, Kind
from distdiag.live.job import Job
from distdiag.live.ranks import RankState, StepTimes
from distdiag.wording import named

WINDOW_SECONDS = 20.0
"""A rank that is slow all that time is slow by itself; both halves have to show it."""
LEAST_SPAN = 0.8
"""Of the window that has to be filled with steps."""
LEAST_STEPS = 6
SLOWER = 1.25
"""So much slower than its peers' median over the window, so that 1.3 times is found and noise is not."""
SLOWER_IN_HALF = 1.2
WORTH = 0.1
"""Share of a step that it costs the others; less is not worth waking anybody."""
CLEAR_SECONDS = 30.0
STEPS_LOOKED_AT = 64
FEW_RANKS = 8
"""Among so few a rank would move the median that it is compared with."""
SHARED_STEPS = 16
"""Steps over which waiting is shared out."""


class OwnTime(NamedTuple):
    """Median time per step outside operations, in nanoseconds."""

    whole: float
    """Over the window."""
    first: float
    """Over its first half."""
    second: float
    step: float
    """Median duration of a step."""
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a rank has to do with the waiting of a job; shares of the step time."""

    lateness_seconds: float
    """How much later than the first rank it came, per step."""
    suffered: float
    caused: float


def own_times(job: Job) -> dict[int, OwnTime]:
    """Return the own time per step of each rank of which the newest steps tell enough.

    A step's own time is what it spends outside collectives and messages, on the host's clock: whoever comes first
    waits inside them, and whoever comes last does not. Hosts run ahead of devices, so nothing is said of these.
    """
    windows = {state.rank: _window(state) for state in job.living if state.header.device == "cpu"}
    return {rank: _own_time(steps) for rank, steps in windows.items() if steps}


def stragglers(own: Mapping[int, OwnTime]) -> Iterator[Condition]:
    """Yield ranks whose own time per step is persistently above that of their peers."""
    if len(own) < 2:
        return
    everybody = _typical(own.values()) if len(own) > FEW_RANKS else None
    for rank, mine in own.items():
        typical = everybody or _typical([each for peer, each in own.items() if peer != rank])
        slower = mine.whole >= SLOWER * typical.whole
        both = mine.first >= SLOWER_IN_HALF * typical.first and mine.second >= SLOWER_IN_HALF * typical.second
        cost = (mine.whole - typical.whole) / max(mine.step, 1)
        if slower and both and cost >= WORTH:
            yield _straggler(rank, mine, typical, cost, [peer for peer in own if peer != rank])


def _straggler(rank: int, mine: OwnTime, typical: OwnTime, cost: float, peers: Collection[int]) -> Condition:
    return Condition(
        kind=Kind.STRAGGLER,
        incident=f"straggler {rank}",
        summary=f"rank {rank} needs {mine.whole / max(typical.whole, 1):.2f} times its peers' time per step: "
        f"{mine.whole / 1e6:.0f} ms of its own against {typical.whole / 1e6:.0f} ms; it costs {cost:.0%} of each step",
        ranks=(rank,),
        evidence=(
            f"over {WINDOW_SECONDS:.0f} s and {mine.steps} steps, in both halves of that time",
            f"compared with the median of {named(peers)}",
        ),
        confirm_seconds=0.9,
        clear_seconds=CLEAR_SECONDS,
    )


def waiting_of(job: Job) -> Mapping[int, Waiting]:
    """Return lateness and shares of waiting of each rank over the newest steps that all of them ended."""
    recent = {state.rank: {s.step: s for s in _newest(state)} for state in job.living}
    recent = {rank: steps for rank, steps in recent.items() if steps}
    if len(recent) < 2:
        return {}
    shared = set.intersection(*(set(steps) for steps in recent.values()))
    late = dict.fromkeys(recent, 0)
    suffered = dict.fromkeys(recent, 0)
    caused = dict.fromkeys(recent, 0)
    total = 0
    for step in shared:
        inside = {rank: steps[step].duration_ns - (steps[step].own_ns or 0) for rank, steps in recent.items()}
        last = min(inside, key=lambda rank: (inside[rank], rank))
        least, most = inside[last], max(inside.values())
        total += max(steps[step].duration_ns for steps in recent.values())
        caused[last] += sum(inside.values()) - len(inside) * least
        for rank, spent in inside.items():
            late[rank] += most - spent
            suffered[rank] += spent - least
    everybody = max(total * len(recent), 1)
    return {
        rank: Waiting(
            lateness_seconds=late[rank] / max(len(shared), 1) / 1e9,
            suffered=suffered[rank] / max(total, 1),
            caused=caused[rank] / everybody,
        )
        for rank in recent
    }


def _newest(state: RankState) -> list[StepTimes]:
    return [step for step in list(state.steps)[-SHARED_STEPS:] if step.own_ns is not None]


def _window(state: RankState) -> list[StepTimes]:
    """Return the steps of the newest time, none where they are too few or do not reach far enough."""
    if len(state.steps) < LEAST_STEPS:
        return []
    last = state.steps[-1].end_ns
    if state.last_ns - last > WINDOW_SECONDS * 1e9:
        return []  # it does not step any more
    steps = [s for s in state.steps if s.own_ns is not None and last - s.end_ns <= WINDOW_SECONDS * 1e9]
    if len(steps) < LEAST_STEPS or last - steps[0].end_ns + steps[0].duration_ns < LEAST_SPAN * WINDOW_SECONDS * 1e9:
        return []
    return steps


def _own_time(steps: list[StepTimes]) -> OwnTime:
    own = [step.own_ns or 0 for step in steps[:: max(1, len(steps) // STEPS_LOOKED_AT)]]
    half = len(own) // 2
    return OwnTime(
        whole=statistics.median(own),
        first=statistics.median(own[:half]),
        second=statistics.median(own[half:]),
        step=statistics.median(step.duration_ns for step in steps),
        steps=len(steps),
    )


def _typical(own: Collection[OwnTime]) -> OwnTime:
    whole, first, second, step, steps = (statistics.median(values) for values in zip(*own, strict=True))
    return OwnTime(whole=whole, first=first, second=second, step=step, steps=int(steps))
