"""Messages counted by step: which side of one without its other half does not do what it did in the steps before.

A rank that posts a message too many and a partner that leaves its half out look alike where they stop. Both sides' own
past tells them apart, where they exchanged equally many in each step so far. A receive from any rank has no other half
at all: who stands still because of it is told from who sent how many. A message that went to the wrong rank is known by
its line, which always served another one, and by that one, which waits for it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from distdiag.analyzers._wording import counted
from distdiag.analyzers.investigation.issued import Issued
from distdiag.analyzers.investigation.lives import End
from distdiag.analyzers.investigation.message_waits import ANY_SOURCE, SENDS
from distdiag.analyzers.investigation.scene import Scene
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind

LEAST_STEPS = 2
"""Fewer show no habit."""
FIRST_CALL = 1
"""Logs that begin with a later one have lost what was before."""
GONE = (End.ORDERLY, End.HARD_EXIT)
EITHER = {"send", "recv"}
"""The two halves of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """A rank whose messages of one kind are more or fewer than in each step before."""

    wait: Wait
    rank: int
    partner: int | None
    """None for any."""
    sends: bool
    step: int
    now: int
    usual: int
    steps: int
    """How many steps went before."""

    @property
    def too_many(self) -> bool:
        """Return whether it posted more than before."""
        return self.now > self.usual

    @property
    def said(self) -> str:
        """Return what it posted now and before."""
        what, way = ("send", "to") if self.sends else ("receive", "from")
        whom = "any rank" if self.partner is None else f"rank {self.partner}"
        before = counted(self.usual, what) if self.usual else "none"
        return (
            f"rank {self.rank} posted {counted(self.now, what)} {way} {whom} in step {self.step}, "
            f"{before} in each of the {self.steps} steps before"
        )


def differing(scene: Scene, cycle: Sequence[Wait]) -> Tally | None:
    """Return who of a circle of waiting posted a message too many, or left one out; None where that is not clear."""
    in_collectives = {rank for wait in cycle if wait.kind is WaitKind.COLLECTIVE for rank in wait.waiters}
    found = {
        tally.rank: tally
        for wait in cycle
        if wait.kind is WaitKind.POINT_TO_POINT and len(wait.absent) == 1 and not wait.any_of
        if (tally := _compared(scene, wait)) is not None
        # Whoever is in another message may yet come to this one: then it is a matter of order.
        if tally.too_many or tally.rank in in_collectives
    }
    return next(iter(found.values())) if len(found) == 1 else None


def _compared(scene: Scene, wait: Wait) -> Tally | None:
    (waiter,), (absent,) = wait.waiters, wait.absent
    call = scene.calls_in(wait).get(waiter)
    if call is None:
        return None
    messages, before = _messages(scene, wait), _steps_before(scene, wait, (waiter, absent), call.step)
    between = {waiter: messages[messages["peer"] == absent], absent: messages[messages["peer"] == waiter]}
    sends = call.op in SENDS
    posted = _tally(wait, between[waiter], waiter, absent, call.step, before, sends=sends)
    answered = _tally(wait, between[absent], absent, waiter, call.step, before, sends=not sends)
    if posted is None or answered is None or posted.usual != answered.usual:
        return None
    if posted.too_many:
        return posted if answered.now == answered.usual else None
    return answered if answered.now < answered.usual else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """A receive from any rank for which nobody has a message left."""

    wait: Wait
    rank: int
    step: int
    odd: tuple[Tally, ...]
    """Whose messages are not as many as before."""
    evidence: tuple[str, ...]
    """Who differs from before, and what everybody sent."""


def narrowed(scene: Scene) -> list[Wait]:
    """Return all waits, those for a message from any rank with the one that could still send it, where it is one.

    Who waits itself, or has ended, sends nothing more.
    """
    held = {rank for wait in scene.waits for rank in wait.waiters} | {
        rank for rank, life in scene.lives.items() if life.end in GONE
    }
    found = []
    for wait in scene.waits:
        free = frozenset(_senders(scene, wait)) - held
        one = free if len(free) == 1 else frozenset[int]()
        logged = frozenset(scene.lives)
        found.append(replace(wait, absent=one & logged, unknown=one - logged, any_of=False) if one else wait)
    return found


def awaited(scene: Scene) -> Awaited | None:
    """Return the one receive from any rank that all standing still comes down to."""
    found = [wait for wait in scene.waits if _senders(scene, wait)]
    if len(found) != 1 or found[0].absent or found[0].unknown:
        return None
    wait = found[0]
    (rank,), senders, messages = wait.waiters, _senders(scene, wait), _messages(scene, wait)
    step = scene.calls_in(wait)[rank].step
    before = _steps_before(scene, wait, (rank, *senders), step)
    sent = messages[messages["peer"] == rank]
    tallies = [_tally(wait, sent, each, rank, step, before, sends=True) for each in senders]
    odd = [tally for tally in tallies if tally is not None and tally.now < tally.usual]
    asked = _tally(wait, messages, rank, None, step, before, sends=False)
    if not odd and asked is not None and asked.too_many:
        odd = [asked]
    counts = sent[sent["op"].isin(SENDS)]["rank"].value_counts()
    told = ", ".join(f"rank {each} {counts.get(each, 0)}" for each in senders)
    evidence = (*(tally.said for tally in odd), f"messages sent to rank {rank} in all: {told}")
    return Awaited(wait=wait, rank=rank, step=step, odd=tuple(odd), evidence=evidence)


def _senders(scene: Scene, wait: Wait) -> tuple[int, ...]:
    """Return who may send what a rank waits for from anybody; nobody where it waits for something else."""
    if wait.kind is not WaitKind.POINT_TO_POINT or not wait.any_of:
        return ()
    calls, waiting = scene.calls_in(wait), (scene.calls_in(each) for each in scene.waits)
    if any(call.op != ANY_SOURCE for call in calls.values()):
        return ()
    if any(call.op in SENDS and call.peer in wait.waiters for each in waiting for call in each.values()):
        return ()  # somebody is in a send to it: why the two do not meet, nothing tells
    return tuple(sorted(set(scene.members(wait) or ()) - wait.waiters))


def _messages(scene: Scene, wait: Wait) -> pd.DataFrame:
    calls = scene.run.calls
    return calls[(calls["group_key"] == wait.group) & calls["p2p"] & ~calls["captured"]]


def _steps_before(scene: Scene, wait: Wait, ranks: Iterable[int], step: int) -> list[int]:
    """Return the steps before one of which the logs of all of some ranks hold everything, since the group was made."""
    calls = scene.run.calls
    mine = calls[(calls["group_key"] == wait.group) & calls["rank"].isin(list(ranks))]
    begun = mine.groupby("rank").agg(step=("step", "min"), call=("call", "min"))
    firsts = begun["step"] + (begun["call"] > FIRST_CALL)
    return list(range(int(firsts.max()) if len(firsts) else step, step))


def _tally(
    wait: Wait,
    messages: pd.DataFrame,
    rank: int,
    partner: int | None,
    step: int,
    before: Sequence[int],
    *,
    sends: bool,
) -> Tally | None:
    """Return how many messages of one kind a rank posted in a step; None where it has no habit."""
    mine = messages[(messages["rank"] == rank) & (messages["op"].isin(SENDS) == sends)]
    counts = mine["step"].value_counts()
    usual = {int(counts.get(each, 0)) for each in before}
    if len(before) < LEAST_STEPS or len(usual) != 1:
        return None
    now = int(counts.get(step, 0))
    return Tally(
        wait=wait,
        rank=rank,
        partner=partner,
        sends=sends,
        step=step,
        now=now,
        usual=usual.pop(),
        steps=len(before),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Misaddressed:
    """A call whose partner is the wrong one."""

    wait: Wait
    call: Issued
    meant: int
    """Who waits for what it sends, or sends what it waits for."""
    before: int
    """How often its line served that rank before."""

    @property
    def said(self) -> str:
        """Return what it did, and what shows it."""
        call, times = self.call, "once" if self.before == 1 else f"{self.before} times"
        did, other = ("sent to", "waits for") if call.op in SENDS else ("waited for", "sends to")
        return (
            f"rank {call.rank} {did} rank {call.peer}, for the first time, at a line that {times} before served rank "
            f"{self.meant}, which {other} it"
        )


def misaddressed(scene: Scene, cycle: Sequence[Wait]) -> Misaddressed | None:
    """Return the one message of a circle that has the wrong partner; None where there is none, or several."""
    found = [
        wrong
        for wait in _unanswered(cycle)
        for other in _unanswered(scene.waits)
        if other.absent & wait.waiters and not other.waiters & wait.absent
        for call in scene.calls_in(wait).values()
        for its in scene.calls_in(other).values()
        if (wrong := _wrong(scene, wait, call, other, its)) is not None
    ]
    return found[0] if len(found) == 1 else None


def _unanswered(waits: Sequence[Wait]) -> list[Wait]:
    return [wait for wait in waits if wait.kind is WaitKind.POINT_TO_POINT and wait.absent and not wait.any_of]


def _wrong(scene: Scene, wait: Wait, call: Issued, other: Wait, its: Issued) -> Misaddressed | None:
    opposite = {call.op, its.op} == EITHER and its.payload == call.payload and other.group == wait.group
    if not opposite or its.peer != call.rank:
        return None
    earlier = _earlier(scene.run.calls, wait, call)
    # To a rank that it served before it may just have been the next message, and that rank have left its side out.
    if (earlier["peer"] == call.peer).any():
        return None
    before = int(((earlier["peer"] == its.rank) & (earlier["path"] == _path_of(scene.run.calls, call))).sum())
    return Misaddressed(wait=wait, call=call, meant=its.rank, before=before) if before else None


def _earlier(calls: pd.DataFrame, wait: Wait, call: Issued) -> pd.DataFrame:
    """Return the messages of one direction that a rank issued on the group before one."""
    mine = calls.loc[(calls["rank"] == call.rank) & calls["p2p"], ["group_key", "call", "op", "peer", "path"]]
    return mine[(mine["group_key"] == wait.group) & (mine["op"] == call.op) & (mine["call"] < call.call)]


def _path_of(calls: pd.DataFrame, call: Issued) -> int:
    mine = calls.loc[(calls["rank"] == call.rank) & (calls["call"] == call.call), "path"]
    return int(mine.iloc[0])
