"""Ranks that died or vanished, told from those that only gave up waiting for them."""

from collections.abc import Iterator

from distdiag.live.alarms import Condition, Kind
from distdiag.live.job import Job
from distdiag.live.ranks import RankState
from distdiag.live.standstill import CONFIRM_SECONDS, HALT, awaited_in, doing_of
from distdiag.live.wording import lasting, named

GONE_SECONDS = 10.0
"""A rank beats once a second; only what keeps the interpreter for so long keeps it from that."""
SHIPPED_SECONDS = 30.0
"""The same where its log is written elsewhere and shipped."""
MOST_MESSAGE = 100


def deaths(job: Job) -> Iterator[Condition]:
    """Yield the death of ranks: an exception that ended one, an exit with an error, or no sign of life."""
    died = sorted(
        (state for state in job.ranks.values() if state.died is not None),
        key=lambda state: (state.last_ns + state.offset_ns, state.rank),
    )
    vanished = [state for state in job.living if state.died is None and _vanished(job, state)]
    if not died and not vanished:
        return
    gave_up = [state for state in died if state.failed_call is not None]
    origins = [*(state for state in died if state.failed_call is None), *vanished]
    awaited = tuple(sorted(_awaited(job, gave_up))) if not origins else ()
    if not origins and job.living:
        summary = f"{named(s.rank for s in gave_up)} failed in a collective"
        summary += f", waiting for {named(awaited)}" if awaited else ""
    else:
        summary = _told(job, origins or gave_up)
        if origins and gave_up:
            summary += f"; {named(s.rank for s in gave_up)} failed in a collective after that"
    yield Condition(
        kind=Kind.DEATH,
        incident=HALT,
        summary=summary,
        ranks=awaited or tuple(sorted(state.rank for state in origins)),
        evidence=(
            *(f"rank {rank} {doing_of(job.ranks[rank])}" for rank in awaited[:2] if rank in job.ranks),
            *(_how(job, state) for state in (*origins, *gave_up)[:6]),
        ),
        confirm_seconds=CONFIRM_SECONDS,
    )


def _awaited(job: Job, gave_up: list[RankState]) -> set[int]:
    """Return the living ranks that those who gave up had waited for."""
    living = {state.rank for state in job.living} | set(job.missing)
    return {
        rank for state in gave_up if state.failed_call for rank in awaited_in(job, state, state.failed_call)
    } & living


def _vanished(job: Job, state: RankState) -> bool:
    silence = job.silence(state)
    if not silence:
        return False
    process = job.process_of(state)
    if process is not None:
        return process == "gone"  # one that is stopped or keeps the interpreter may come back
    return silence >= (SHIPPED_SECONDS if state.header.shipped_from else GONE_SECONDS)


def _told(job: Job, states: list[RankState]) -> str:
    if len(states) == 1:
        return _how(job, states[0])
    return f"{named(state.rank for state in states)} died; the first: {_how(job, states[0])}"


def _how(job: Job, state: RankState) -> str:
    fault = state.died
    if fault is None:
        gone = "was killed or vanished: its process is gone" if job.process_of(state) == "gone" else "is not heard of"
        return f"rank {state.rank} {gone}, its last record is {lasting(job.silence(state))} old, step {state.step}"
    if fault.fault == "exit":
        return f"rank {state.rank} exited with code {fault.code} in step {fault.step}"
    message = (fault.message or "").strip().partition("\n")[0][:MOST_MESSAGE]
    return f"rank {state.rank} died of {fault.type}: {message} (step {fault.step})"
