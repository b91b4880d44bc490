"""The wait-for graph: who waits for whom, and where the waiting ends.

Nodes are ranks and the operations they are blocked in; an operation points to the ranks that it needs and that have
not come. Following the arrows from any blocked rank ends at ranks that wait for nobody, or in a circle.
"""

import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_STARTS = 256
"""Circles are searched from so many operations at most, the longest waiting first; each search reads the graph once."""


class WaitKind(enum.StrEnum):
    """What ranks are blocked in."""

    COLLECTIVE = "collective"
    POINT_TO_POINT = "point-to-point"
    CREATION = "creation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One operation that cannot end: the ranks blocked in it and those it needs that have not come."""

    kind: WaitKind
    group: str
    number: int
    waiters: frozenset[int]
    absent: frozenset[int]
    """Empty where everybody came, or where any of several ranks would do."""
    since_ns: int
    given_up_ns: int | None = None
    """When the first waiter failed; None while all still wait."""
    waited_ns: int | None = None
    """How long the one who failed first had waited, by its own clock."""
    unknown: frozenset[int] = frozenset()
    """Members that left no log, so that nobody can say whether they came."""
    any_of: bool = False
    """Whether one of several ranks would do."""
    behind: frozenset[int] = frozenset()
    """Those of the absent whose hosts have issued it: their devices have not come to it."""
    arrived_ns: int | None = None
    """When the absent side of a message came after all, the waiter having given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """Where the waiting ends."""

    sinks: frozenset[int]
    """Ranks that others need and that wait for nobody."""
    cycle: tuple[Wait, ...]
    """The smallest circle of operations, where there is one and no sink."""


def standstill(waits: Iterable[Wait]) -> Standstill:
    """Return the ranks at which all waiting ends, else the smallest circle."""
    ordered = sorted(waits, key=_age)
    blocked: set[int] = set()
    needed: set[int] = set()
    for wait in ordered:
        blocked |= wait.waiters
        needed |= wait.absent
    sinks = frozenset(needed - blocked)
    return Standstill(sinks=sinks, cycle=() if sinks else _smallest_cycle(ordered))


def waiting_on(waits: Iterable[Wait], ranks: Iterable[int]) -> tuple[Wait, ...]:
    """Return the operations that need one of the ranks, the longest waiting first."""
    wanted = set(ranks)
    return tuple(sorted((wait for wait in waits if wait.absent & wanted), key=_age))


def behind(waits: Sequence[Wait], ranks: Iterable[int]) -> frozenset[int]:
    """Return all ranks that wait for one of ``ranks``, directly or through others."""
    reached = set(ranks)
    victims: set[int] = set()
    open_waits = list(waits)
    while True:
        reaching = [wait for wait in open_waits if wait.absent & reached]
        if not reaching:
            return frozenset(victims - set(ranks))
        open_waits = [wait for wait in open_waits if not wait.absent & reached]
        for wait in reaching:
            victims |= wait.waiters
            reached |= wait.waiters


def reached(waits: Sequence[Wait], roots: Iterable[Wait]) -> tuple[Wait, ...]:
    """Return the operations that some of them wait for, directly or through others, and these."""
    found, open_waits = dict.fromkeys(roots), list(waits)
    needed = {rank for wait in found for rank in wait.absent}
    while True:
        further = [wait for wait in open_waits if wait.waiters & needed and wait not in found]
        if not further:
            return tuple(wait for wait in waits if wait in found)
        found |= dict.fromkeys(further)
        needed |= {rank for wait in further for rank in wait.absent}


def _age(wait: Wait) -> tuple[int, str, int, str]:
    return wait.since_ns, wait.group, wait.number, wait.kind.value


def _smallest_cycle(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    waits_of: dict[int, list[int]] = {}
    for index, wait in enumerate(waits):
        for rank in wait.waiters:
            waits_of.setdefault(rank, []).append(index)
    best: tuple[int, ...] = ()
    for start, wait in enumerate(waits[:MAX_STARTS]):
        if wait.absent:
            found = _cycle_through(start, waits, waits_of)
            if found and (not best or len(found) < len(best)):
                best = found
    return tuple(waits[index] for index in best)


def _cycle_through(start: int, waits: Sequence[Wait], waits_of: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Return the shortest circle of operations that leads back to ``start``, empty when there is none."""
    came_from: dict[int, int] = {start: start}
    queue = deque([start])
    seen_ranks: set[int] = set()
    while queue:
        index = queue.popleft()
        for rank in sorted(waits[index].absent - seen_ranks):
            seen_ranks.add(rank)
            for following in waits_of.get(rank, ()):
                if following == start:
                    return _trail(index, came_from, start)
                if following not in came_from:
                    came_from[following] = index
                    queue.append(following)
    return ()


def _trail(index: int, came_from: Mapping[int, int], start: int) -> tuple[int, ...]:
    trail = [index]
    while trail[-1] != start:
        trail.append(came_from[trail[-1]])
    return tuple(reversed(trail))
