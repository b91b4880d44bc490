"""What a watched job looks like at one moment, as values that views, files and exporters share."""

import time
from collections.abc import Iterable

import msgspec

from distdiag import events
from distdiag.live.alarms import Alarm, lasting
from distdiag.live.job import Job
from distdiag.live.ranks import RankState
from distdiag.live.slowness import Waiting, waiting_of
from distdiag.live.standstill import doing_of, limit_of
from distdiag.live.watch import Watch
from distdiag.wording import named

STRIP_STEPS = 48
"""Newest steps of which the times are shown."""
WORST = 1000.0
"""Trouble of a rank that an alarm names: above whatever waiting makes."""


class RankRow(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """One rank; ages and durations in seconds, absent is not zero."""

    rank: int
    host: str
    pid: int
    state: str
    """``runs``, ``waits``, ``stalled``, ``silent``, ``died`` or ``ended``."""
    step: int
    phase: str
    doing: str
    where: str | None
    """``file:line function`` of the innermost user frame."""
    still_seconds: float
    """Since its last sign of progress."""
    limit_seconds: float
    pulse_seconds: float
    """Since anything came of it."""
    step_seconds: float | None
    """Duration of its last step."""
    own_seconds: float | None
    """The part of it outside collectives and messages."""
    lateness_seconds: float | None
    suffered: float | None
    """Share of the step time that it waits."""
    caused: float | None
    """Share of the step time of all that they wait for it."""
    memory_bytes: int | None
    memory_limit_bytes: int | None
    steps: int
    """Steps that were seen to end."""
    trouble: float
    """For sorting: the more, the sooner one has to look at it."""
    spent: dict[str, dict[str, int]] = {}
    """By group: sums over the collectives of all steps seen, ``wait_ns``, ``duration_ns``, ``bytes``, ``calls``."""
    strip: tuple[tuple[int, float], ...] = ()
    """Newest steps, and how long each took without waiting, in seconds."""


class GroupRow(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """One process group."""

    group: str
    ranks: str
    members: int
    newest: int
    """Number of the newest collective that any member issued."""
    behind: dict[int, int]
    """Collectives that a member has still to issue, of members that are not at the newest."""
    parted_at: int | None
    """Number of the first call that is not the same on all members."""


class Snapshot(msgspec.Struct, kw_only=True, frozen=True):
    """A job at one moment."""

    wall_ns: int
    logs: str
    health: str
    """In one line."""
    world_size: int
    missing: tuple[int, ...]
    attempt: int
    ended: bool
    step: int | None
    steps_per_second: float | None
    tokens_per_second: float | None
    remaining_seconds: float | None
    ranks: tuple[RankRow, ...]
    """In the order of ranks."""
    groups: tuple[GroupRow, ...]
    alarms: tuple[Alarm, ...]
    """Those that are active."""
    notes: tuple[str, ...]
    """What could not be read."""
    hosts: dict[str, int] = {}
    """Ranks of each host, where only those in trouble are among ``ranks``."""
    states: dict[str, int] = {}
    """Ranks by state, where only those in trouble are among ``ranks``."""

    @property
    def size(self) -> int:
        """Return how many ranks there are."""
        return sum(self.hosts.values()) if self.hosts else len(self.ranks)


def snapshot_of(watch: Watch, wall_ns: int | None = None) -> Snapshot:
    """Return what a watched job looks like now."""
    job, alarms = watch.job, tuple(watch.alarms.active.values())
    progress = job.progress()
    return Snapshot(
        wall_ns=time.time_ns() if wall_ns is None else wall_ns,
        logs=str(watch.logs),
        health=_health(watch, alarms),
        world_size=job.world_size,
        missing=job.missing,
        attempt=max((state.attempt for state in job.ranks.values()), default=0),
        ended=job.ended,
        ranks=tuple(rank_rows(job, alarms)),
        groups=tuple(_groups(job)),
        alarms=alarms,
        notes=_notes(watch),
        step=progress.step,
        steps_per_second=progress.steps_per_second,
        tokens_per_second=progress.tokens_per_second,
        remaining_seconds=progress.remaining_seconds,
    )


def rank_rows(job: Job, alarms: Iterable[Alarm]) -> list[RankRow]:
    """Return the row of each rank."""
    accused = {rank for alarm in alarms for rank in alarm.condition.ranks}
    waiting = waiting_of(job)
    return [_row(job, state, waiting.get(state.rank), accused) for state in job.ranks.values()]


def _health(watch: Watch, alarms: tuple[Alarm, ...]) -> str:
    job = watch.job
    if alarms:
        more = f" (and {len(alarms) - 1} more)" if len(alarms) > 1 else ""
        return f"{alarms[0].kind.upper()} {alarms[0].condition.summary}{more}"
    if not watch.follower.present:
        return f"the logs in {watch.logs} are gone" if job.ranks else f"waiting for logs in {watch.logs}"
    if not job.ranks:
        return "no rank has written a log yet"
    if job.ended:
        return f"all {len(job.ranks)} ranks have ended"
    if job.left:
        living = job.living
        ago = lasting(min(job.silence(state) for state in living))
        return (
            f"not running any more: {named(state.rank for state in living)} wrote nothing for {ago} and told no end; "
            f"what is known: distdiag analyze {watch.logs}"
        )
    if job.missing:
        return f"{named(job.missing)} of {job.world_size} left no log yet"
    stillest = max(job.living, key=lambda state: job.still(state) / limit_of(state))
    still, limit = job.still(stillest), limit_of(stillest)
    if 2 * still > limit and not stillest.is_exempt():
        return f"rank {stillest.rank} has been still for {lasting(still)}, its limit is {lasting(limit)}"
    return "healthy"


def _notes(watch: Watch) -> tuple[str, ...]:
    follower = watch.follower
    notes = [f"cannot read {name}" for name in follower.unreadable[:3]]
    if follower.damaged:
        notes.append(f"{follower.damaged} lines are damaged or of a newer version")
    return tuple(notes)


def _row(job: Job, state: RankState, waiting: Waiting | None, accused: set[int]) -> RankRow:
    last = state.steps[-1] if state.steps else None
    memory = state.memory[-1] if state.memory else None
    still, limit = job.still(state), limit_of(state)
    shown = _state(job, state, still > limit and not state.is_exempt())
    trouble = (waiting.caused if waiting else 0.0) + still / limit
    return RankRow(
        rank=state.rank,
        host=state.host,
        pid=state.header.pid,
        state=shown,
        step=state.step,
        phase=_phase(state),
        doing=doing_of(state),
        where=state.place(),
        still_seconds=still,
        limit_seconds=limit,
        pulse_seconds=max(job.now - state.arrived, 0.0),
        step_seconds=last.duration_ns / 1e9 if last else None,
        own_seconds=last.own_ns / 1e9 if last and last.own_ns is not None else None,
        lateness_seconds=waiting.lateness_seconds if waiting else None,
        suffered=waiting.suffered if waiting else None,
        caused=waiting.caused if waiting else None,
        memory_bytes=memory.used_bytes if memory else None,
        memory_limit_bytes=memory.limit_bytes if memory else None,
        steps=state.steps_seen,
        spent=state.spent,
        trouble=trouble + WORST * (state.rank in accused) + WORST / 2 * (shown in ("died", "silent")),
        strip=tuple((s.step, s.own_ns / 1e9) for s in list(state.steps)[-STRIP_STEPS:] if s.own_ns is not None),
    )


def _phase(state: RankState) -> str:
    phase = state.user_phase()
    return phase.name if phase is not None else state.phase


def _state(job: Job, state: RankState, stalled: bool) -> str:
    if state.died is not None:
        return "died"
    if state.ended:
        return "ended"
    if job.silence(state):
        return "silent"
    if stalled:
        return "stalled"
    return "waits" if state.current_call() is not None else "runs"


def _groups(job: Job) -> list[GroupRow]:
    rows = []
    for group in job.groups:
        at = {
            rank: job.ranks[rank].sequences.get(group.name, group.start) for rank in group.members if rank in job.ranks
        }
        parting = group.parting()
        rows.append(
            GroupRow(
                group=group.label,
                ranks=events.folded(group.members),
                members=len(group.members),
                newest=group.newest,
                behind={rank: group.newest - seq for rank, seq in at.items() if seq < group.newest},
                parted_at=parting.seq if parting else None,
            )
        )
    return rows


class RankDetail(msgspec.Struct, kw_only=True, frozen=True):
    """What is known of one rank beyond its row."""

    frames: tuple[str, ...]
    """User frames of its main thread at the last pulse, outermost first."""
    stack: tuple[tuple[str, tuple[str, ...]], ...]
    """The newest stacks it took of itself, by thread, outermost frame first."""
    stack_reason: str | None
    stack_seconds: float | None
    """How old these are."""
    facts: dict[str, str]
    """What the user said with the newest steps."""
    faults: tuple[str, ...]


def detail_of(job: Job, rank: int) -> RankDetail | None:
    """Return what is known of one rank, None where it is not of the job."""
    state = job.ranks.get(rank)
    if state is None:
        return None
    stack = state.stack
    faults = [*state.raised, *([state.died] if state.died else [])]
    return RankDetail(
        frames=tuple(state.paths.get(state.path or 0, ())),
        stack=tuple((each.thread, tuple(each.frames)) for each in stack.threads) if stack else (),
        stack_reason=stack.reason if stack else None,
        stack_seconds=(state.last_ns - stack.time_ns) / 1e9 if stack else None,
        facts={name: str(value) for name, value in sorted(state.facts.items())},
        faults=tuple(f"{fault.type or fault.fault}: {fault.message or fault.code}" for fault in faults),
    )
