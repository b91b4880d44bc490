"""Pipeline stages that run different numbers of micro-batches, told from the messages of one step.

Stages form a chain (or a ring, where each holds several), along which activations go one way and gradients the other.
Each stage issues as many messages one way as it runs micro-batches. Where two neighbours wait for one another, and
one of them has turned to something else after fewer messages of a way than the other expects, the other stages tell
which of the two differs: those that issued more than the smaller number, and those that turned away after just as
many. A stage that has turned away need not be done, and a wrong order of messages makes such circles, too: so a stage
with fewer is named only where the step before went well with as many on all, or where both neighbours expect more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from distdiag.analyzers._wording import counted, named
from distdiag.analyzers.investigation.scene import Scene
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind

SENDS = "send"
LEAST_COUNT = 2
"""A stage that has passed on fewer tells of no loop over micro-batches."""
LEAST_STAGES = 3
"""Of two, none is the odd one."""

Ways = Mapping[int, int]
"""The next rank of each along one way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """Stages whose numbers of messages along one way differ."""

    step: int
    fewer: tuple[int, ...]
    count: int
    """How many these issued before they turned to something else."""
    more: tuple[int, ...]
    """Those that issued at least one more."""
    odd: int | None
    """Which stage differs from most; None at a tie."""
    before: int | None
    """How many each of them issued in the step before, where that was the same on all."""

    @property
    def said(self) -> str:
        """Return the two sides with their numbers."""
        return (
            f"{named(self.fewer)} turned to something else after {counted(self.count, 'message')} in one direction, "
            f"{named(self.more)} issued at least {self.count + 1}"
        )


def uneven(scene: Scene, cycle: Sequence[Wait]) -> Uneven | None:
    """Return how the stages of a pipeline differ whose neighbours are in a circle of waiting, where they do."""
    told = [found for wait in cycle if (found := _behind(scene, wait)) is not None]
    told.sort(key=lambda each: -each.count)  # gradients follow activations, whose number comes first
    return told[0] if told and len({each.odd for each in told}) == 1 else None


def _behind(scene: Scene, wait: Wait) -> Uneven | None:
    """Return how the stages differ along the way of a message whose other side does not come."""
    if wait.kind is not WaitKind.POINT_TO_POINT or len(wait.absent) != 1 or wait.any_of:
        return None
    (waiter,), (absent,) = wait.waiters, wait.absent
    call = scene.calls_in(wait).get(waiter)
    if call is None:
        return None
    calls = scene.run.calls
    here = calls[(calls["group_key"] == wait.group) & calls["p2p"] & calls["peer"].notna() & ~calls["captured"]]
    way = _way(here, *((waiter, absent) if call.op == SENDS else (absent, waiter)))
    return None if way is None else _along(scene, here, way, few=absent, many=waiter)


def _way(messages: pd.DataFrame, one: int, other: int) -> Ways | None:
    """Return the chain or ring of ranks that leads from one to another; None where messages go other ways, too."""
    near: dict[int, set[int]] = {}
    for rank, peer in messages[["rank", "peer"]].drop_duplicates().itertuples(index=False):
        near.setdefault(int(rank), set()).add(int(peer))
        near.setdefault(int(peer), set()).add(int(rank))
    way = {one: other}
    for start, last in ((other, one), (one, other)):
        before, here = last, start
        while True:
            onward = near[here] - {before}
            if len(onward) > 1:
                return None
            there = next(iter(onward), None)
            if there is None or there in (one, other):
                break
            way.update({here: there} if start == other else {there: here})
            before, here = here, there
    return way


def _along(scene: Scene, messages: pd.DataFrame, way: Ways, *, few: int, many: int) -> Uneven | None:
    stages = sorted(set(way) | set(way.values()))
    along = messages[_is_along(messages, way)]
    at = _steps(scene, stages)
    step = min(at.get(few, 0), at.get(many, 0))
    counts = {rank: _counts(along, rank, step) for rank in stages}
    posted = {rank: max(each, default=0) for rank, each in counts.items()}
    count = posted[few]
    turned = {rank for rank in stages if at.get(rank, 0) > step or not _is_blocked_along(scene, along, rank)}
    if count < LEAST_COUNT or posted[many] <= count or few not in turned or len(set(counts[few])) > 1:
        return None
    fewer = tuple(rank for rank in stages if posted[rank] == count and rank in turned and len(set(counts[rank])) == 1)
    more = tuple(rank for rank in stages if posted[rank] > count)
    before = {max(_counts(along, rank, step - 1), default=0) for rank in stages} if step else set()
    same_before = before.pop() if len(before) == 1 else None
    odd = _odd(few, fewer, many, more, len(stages))
    if odd == few and same_before is None and not _is_between(few, way, more):
        return None  # a wrong order of messages looks the same
    if odd is None and same_before is None:
        return None  # nothing tells that they ever ran as many
    return Uneven(step=step, fewer=fewer, count=count, more=more, odd=odd, before=same_before)


def _odd(few: int, fewer: Sequence[int], many: int, more: Sequence[int], stages: int) -> int | None:
    if stages < LEAST_STAGES:
        return None
    if len(fewer) == 1 and 2 * len(more) > stages:
        return few
    if len(more) == 1 and 2 * len(fewer) > stages:
        return many
    return None


def _is_between(rank: int, way: Ways, others: Sequence[int]) -> bool:
    """Return whether a rank has two neighbours, and both are among some others."""
    before = next((start for start, there in way.items() if there == rank), None)
    return before in others and way.get(rank) in others


def _is_along(messages: pd.DataFrame, way: Ways) -> "pd.Series[bool]":
    ranks, peers, sends = messages["rank"], messages["peer"].astype("int64"), messages["op"] == SENDS
    sources, ends = ranks.where(sends, peers), peers.where(sends, ranks)
    return sources.map(way) == ends


def _counts(along: pd.DataFrame, rank: int, step: int) -> tuple[int, ...]:
    """Return how many messages of a way a rank received, and how many it sent, in one step; of those that it does."""
    mine = along[along["rank"] == rank]
    here = mine[mine["step"] == step]
    return tuple(int((here["op"] == op).sum()) for op in sorted(set(mine["op"])))


def _steps(scene: Scene, ranks: Sequence[int]) -> dict[int, int]:
    """Return the step that each rank is in."""
    calls = scene.run.calls
    newest = calls[calls["rank"].isin(ranks)].groupby("rank")["step"].max()
    return {int(str(rank)): int(step) for rank, step in newest.items()}


def _is_blocked_along(scene: Scene, along: pd.DataFrame, rank: int) -> bool:
    """Return whether a rank waits in one of some messages."""
    numbers = {call.call for wait in scene.waits for call in scene.calls_in(wait).values() if call.rank == rank}
    return bool(((along["rank"] == rank) & along["call"].isin(numbers)).any())


__all__ = ["Uneven", "uneven"]
