"""Ranks that died or vanished, told from those that only gave up waiting for them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from distdiag.live.alarms import Condition, Kind, lasting
from distdiag.live.job import Job
from distdiag.live.ranks import RankState
from distdiag.live.standstill import CONFIRM_SECONDS, HALT, awaited_in, place_of
from distdiag.wording import named

Name = TypeVar("Name", int, str)

GONE_SECONDS = 10.0
"""A rank beats once a second; only what keeps the interpreter for so long keeps it from that."""
SHIPPED_SECONDS = 30.0
"""The same where its log is written elsewhere and shipped."""
STACKS_SECONDS = 30.0
"""A rank that has come to its limit takes its stacks, which halts it for a while."""
STACKS_BEGIN_SECONDS = 2.0
"""So much before its limit the last pulse may have been before that."""
UNNAMED_SECONDS = 5.0
"""What makes others fail may be noticed later than that they fail: one that was killed is silent for a while first."""
AHEAD = 2
"""Steps, and collectives of a group, that nobody can be ahead of a member that is no more."""
WRONG_CLOCK_NS = 60_000_000_000
"""Records come within seconds of being written; whose come later, or before, are of a host whose clock is wrong."""
MOST_MESSAGE = 100
MOST_EVIDENCE = 6


class Dead(NamedTuple):
    """A rank that died or vanished."""

    rank: int
    wall_ns: int
    gave_up: bool
    """It failed in a collective, so others may be the reason."""
    how: str


def deaths(job: Job) -> Iterator[Condition]:
    """Yield the death of ranks: an exception that ended one, an exit with an error, or no sign of life."""
    dead = dead_ranks(job)
    if dead:
        awaited = () if any(not each.gave_up for each in dead) else tuple(sorted(_awaited(job, dead)))
        doing = [f"rank {rank} {place_of(job, job.ranks[rank])}" for rank in awaited[:2] if rank in job.ranks]
        yield death_of(dead, awaited, doing, anybody_lives=bool(job.living))


def dead_ranks(job: Job) -> list[Dead]:
    """Return the ranks that died or vanished, in the order of time."""
    moments = _last_moments(job)
    dead = [
        Dead(state.rank, moments[state.rank], state.failed_call is not None, _how(job, state))
        for state in job.ranks.values()
        if state.died is not None
    ]
    dead.sort(key=lambda each: (each.wall_ns, each.rank))
    living = () if job.left else job.living
    vanished = [state for state in living if state.died is None and _vanished(job, state)]
    return dead + [Dead(s.rank, moments[s.rank], False, _how(job, s)) for s in vanished]


def _last_moments(job: Job) -> dict[int, int]:
    """Return the wall time of the newest record of each rank: by its own clock, unless that is plainly wrong."""
    own = {state.rank: state.last_ns + state.offset_ns for state in job.ranks.values()}
    came = {state.rank: round(state.arrived * 1e9) for state in job.ranks.values()}
    ahead = far_ahead({rank: moment - came[rank] for rank, moment in own.items()})
    return {rank: moment - ahead.get(rank, 0) for rank, moment in own.items()}


def far_ahead(moments_ns: Mapping[Name, int]) -> dict[Name, int]:
    """Return how far some clocks are ahead of most, where that is more than records take to come.

    ``moments_ns`` is how much later than on another clock, the same for all, each shows the same moment.
    """
    typical = statistics.median_low(moments_ns.values()) if moments_ns else 0
    return {name: ns - typical for name, ns in moments_ns.items() if abs(ns - typical) > WRONG_CLOCK_NS}


def death_of(dead: Sequence[Dead], awaited: tuple[int, ...], doing: Sequence[str], *, anybody_lives: bool) -> Condition:
    """Return what is to be said of dead ranks; ``awaited`` are those that all of them had waited for."""
    origins = [each for each in dead if not each.gave_up]
    gave_up = [each for each in dead if each.gave_up]
    if not origins and anybody_lives:
        summary = f"{named(each.rank for each in gave_up)} failed in a collective"
        summary += f", waiting for {named(awaited)}" if awaited else ""
    else:
        first = (origins or gave_up)[0]
        several = f"{named(each.rank for each in origins or gave_up)} died; the first: "
        summary = (several if len(origins or gave_up) > 1 else "") + first.how
        if origins and gave_up:
            summary += f"; {named(each.rank for each in gave_up)} failed in a collective after that"
    return Condition(
        kind=Kind.DEATH,
        incident=HALT,
        summary=summary,
        ranks=awaited or tuple(sorted(each.rank for each in origins)),
        evidence=(*doing, *(each.how for each in (*origins, *gave_up)[:MOST_EVIDENCE])),
        confirm_seconds=UNNAMED_SECONDS if anybody_lives and not (awaited or origins) else CONFIRM_SECONDS,
    )


def _awaited(job: Job, dead: Sequence[Dead]) -> set[int]:
    """Return the living ranks that those who gave up had waited for; where all had come, those not heard of since."""
    living = {state.rank for state in job.living} | set(job.missing)
    failed = [(state, call) for state in (job.ranks[each.rank] for each in dead) if (call := state.failed_call)]
    awaited = living & {rank for state, call in failed for rank in awaited_in(job, state, call)}
    members = {rank for state, call in failed if (group := state.group_of(call)) for rank in group.members}
    return awaited or {state.rank for state in job.living if state.rank in members and job.silence(state)}


def _vanished(job: Job, state: RankState) -> bool:
    silence = job.silence(state)
    if not silence:
        return False
    process = job.process_of(state)
    if process is not None:
        return process == "gone"  # one that is stopped or keeps the interpreter may come back
    if _is_followed(job, state):
        return False
    patience = SHIPPED_SECONDS if state.header.shipped_from else GONE_SECONDS
    if state.last_ns - state.progress_ns > (state.limit_seconds - STACKS_BEGIN_SECONDS) * 1e9:
        patience = max(patience, STACKS_SECONDS)
    return silence >= patience


def _is_followed(job: Job, state: RankState) -> bool:
    """Return whether peers complete steps with collectives that need a rank: it lives, only its log does not grow.

    Its disk may be full, or the directory that its host sees is no longer the one that is read.
    """
    for group in job.groups:
        if state.rank not in group.members:
            continue
        reached = state.sequences.get(group.name, group.start)
        for peer in (job.ranks[rank] for rank in group.members if rank in job.ranks):
            ahead = peer.sequences.get(group.name, group.start) - reached
            if ahead >= AHEAD and peer.step - state.step >= AHEAD:
                return True
    return False


def _how(job: Job, state: RankState) -> str:
    fault = state.died
    if fault is None:
        gone = "was killed or vanished: its process is gone" if job.process_of(state) == "gone" else "is not heard of"
        return f"rank {state.rank} {gone}, its last record is {lasting(job.silence(state))} old, step {state.step}"
    if fault.fault == "exit":
        return f"rank {state.rank} exited with code {fault.code} in step {fault.step}"
    message = (fault.message or "").strip().partition("\n")[0][:MOST_MESSAGE]
    return f"rank {state.rank} died of {fault.type}: {message} (step {fault.step})"
