"""A job in which nobody moves: since when, and who it is that the others wait for."""

from collections.abc import Iterator

from distdiag import events
from distdiag.live.alarms import Condition, Kind, lasting, saying
from distdiag.live.job import Job
from distdiag.live.links import cut_off
from distdiag.live.ranks import JOINING, RankState
from distdiag.wording import basename, named

HALT = "halt"
"""The incident of a job that does not go on; whoever died is part of it."""
START_SECONDS = 60.0
"""Importing, joining and the first batches take longer than any later pause; until then the limit is no shorter."""
WARM_UP_STEPS = 2
WARM_UP = 2.0
"""First steps make connections, caches and compiled code: until they are done the limit is twice as long."""
COMPUTES = 0.02
"""Share of a processor above which a process does something: one that waits takes a fourth of that, one that still
begins takes more even where dozens of others compete for the processor."""
CONFIRM_SECONDS = 0.9
"""Seen at two looks: what was just about to be written is no stall."""
MOST_PLACES = 6
PROCESSES = {
    "stopped": ", its process is stopped",
    "traced": ", its process is held by a tracer",
    "gone": ", its process is gone",
}


def standstill(job: Job) -> Iterator[Condition]:
    """Yield the stall of a job: no rank made progress within its limit, and none is in something that may take long.

    The limit is the one that recording has in force for the phase each rank is in, as its log says.
    """
    living = job.living
    if not living or (job.missing and job.now - job.began < START_SECONDS):
        return
    if any(may_move(job, state) for state in living):
        return
    broken = [pair for links in {state.groups.links for state in living} for pair in links.broken()]
    suspects = suspected(job) or _stopped(job) or cut_off(broken, {state.rank: state.host for state in living})
    since = min(job.still(state) for state in living)
    limit = max(limit_of(state) for state in living)
    places = places_of(job, suspects)
    yield Condition(
        kind=Kind.STALL,
        incident=HALT,
        summary=f"no rank made progress for {lasting(since)} (limit {lasting(limit)}): " + "; ".join(places[:2]),
        ranks=suspects,
        evidence=(*_unanswered(broken), *places[:MOST_PLACES]),
        limit_seconds=limit,
        confirm_seconds=CONFIRM_SECONDS,
    )


def _stopped(job: Job) -> tuple[int, ...]:
    """Return the ranks whose process is stopped, if that of others is not: it may be within a call that all are in."""
    living = job.living
    stopped = [state.rank for state in living if job.silence(state) and job.process_of(state) == "stopped"]
    return tuple(sorted(stopped)) if len(stopped) < len(living) else ()


def _unanswered(broken: list[tuple[int, int]]) -> Iterator[str]:
    """Yield who does not reach whom."""
    if broken:
        pairs = ", ".join(f"rank {sender} to rank {receiver}" for sender, receiver in broken[:MOST_PLACES])
        yield f"what was sent is not acknowledged: {pairs}"


def limit_of(state: RankState) -> float:
    """Return for how long, in seconds, a rank may be still."""
    begins = state.step < WARM_UP_STEPS
    if not state.started or (begins and state.cpu_share > COMPUTES):
        return max(state.limit_seconds, START_SECONDS)
    return state.limit_seconds * (WARM_UP if begins else 1.0)


def suspected(job: Job) -> tuple[int, ...]:
    """Return the ranks that others wait for and that wait for nobody; none where everybody waits."""
    waiting = {state.rank: call for state in job.living if (call := state.current_call()) is not None}
    awaited: set[int] = set()
    for rank, call in waiting.items():
        awaited |= awaited_in(job, job.ranks[rank], call)
    joining = {state.rank for state in job.living if _joining(state)}
    if not waiting and joining:
        awaited = {*job.ranks, *job.missing} - joining
    elsewhere = {rank for rank in awaited if rank not in job.ranks or not awaits_others(job, job.ranks[rank])}
    if elsewhere:
        return tuple(sorted(elsewhere))
    partings = [parting for group in job.groups if (parting := group.parting()) is not None]
    return partings[0].minority if partings else ()


def awaits_others(job: Job, state: RankState) -> bool:
    """Return whether a rank is in a call, or in the making of a group; one that is not heard of may be anywhere."""
    return not job.silence(state) and (state.current_call() is not None or _joining(state))


def places_of(job: Job, first: tuple[int, ...], *, missing: bool = True) -> list[str]:
    """Return where the ranks are, each place with all ranks that are there, those of ``first`` first."""
    places: dict[str, list[int]] = {}
    for state in job.ranks.values():
        places.setdefault(place_of(job, state), []).append(state.rank)
    ordered = sorted(places.items(), key=lambda item: (not set(item[1]) & set(first), len(item[1]), item[1]))
    told = [saying(ranks, place) for place, ranks in ordered]
    return [f"{named(job.missing)} left no log", *told] if missing and job.missing else told


def awaited_in(job: Job, state: RankState, call: events.Call) -> set[int]:
    """Return the ranks that a rank's call waits for: of a collective, those that have not issued it yet."""
    signature = state.signatures.get(call.signature)
    group = state.group_of(call)
    if signature is None or group is None:
        return set()
    if signature.p2p:
        return {signature.peer} & set(group.members) if signature.peer is not None else set()
    others = (job.ranks.get(rank) for rank in group.members)
    behind = {other.rank for other in others if other and other.sequences.get(group.name, group.start) < call.seq}
    return behind | (set(job.missing) & set(group.members))


def place_of(job: Job, state: RankState) -> str:
    """Return what a rank does and where; of one that is not heard of, since when, and what its process is."""
    if state.ended:
        return doing_of(state)
    at = state.place()
    doing = doing_of(state) + (f" ({basename(at)})" if at else "")
    silence = job.silence(state)
    if not silence:
        return doing
    known = PROCESSES.get(job.process_of(state) or "", "")
    return f"gives no sign of life for {lasting(silence)}{known}; the last: {doing}"


def doing_of(state: RankState) -> str:
    """Return ``waits in all_reduce 13 of default_pg`` and the like, as of its last sign of life."""
    if state.ended:
        return "has ended"
    call = state.current_call()
    if call is not None and (signature := state.signatures.get(call.signature)) is not None:
        group = state.group_of(call)
        seq = f" {call.seq}" if call.seq else ""
        peer = f" with rank {signature.peer}" if signature.peer is not None and signature.p2p else ""
        return f"waits in {signature.op}{seq}{peer} of {group.label if group else signature.group}"
    for phase in reversed(state.phases.values()):
        return f"is in {phase.name}"
    if state.batch_since_ns is not None or state.activity == "data-loading":
        return "is in its data loader"
    return f"is in {state.activity or state.phase or 'its own code'}"


def may_move(job: Job, state: RankState) -> bool:
    """Return whether a rank is within its limit, or in something that may rightly take long."""
    silent = job.silence(state)
    if state.is_exempt() and not silent:
        return True
    return job.still(state) <= limit_of(state)


def _joining(state: RankState) -> bool:
    return any(phase.name in JOINING for phase in state.phases.values())
