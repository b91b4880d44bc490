"""Early signs of trouble: calls or replicas that part, a loss that is no number, memory that runs out, a slow save."""

import statistics
from collections.abc import Iterator, Sequence

from distdiag.live.alarms import Condition, Kind, lasting
from distdiag.live.job import Job
from distdiag.live.ranks import MemorySample, RankState
from distdiag.live.standstill import CONFIRM_SECONDS
from distdiag.replicas import name_of
from distdiag.wording import named

NO_NUMBERS = frozenset({"nan", "inf", "-inf"})
SAVING = ("checkpoint", "ckpt", "save", "saving")
"""Words in the name of a phase in which a model is saved."""
LONGEST_SAVES = 5.0
"""A save may take five times as long as the longest so far; the first one, five times the shortest stall."""
LEAST_SAMPLES = 12
LEAST_SPAN_SECONDS = 30.0
WARM_UP_STEPS = 10
"""Caches and allocators grow at first."""
RUNS_OUT_SECONDS = 900.0
MOST_SUMS = 8
STEADY = 0.7
"""Growth that slows down by more than that in the second half will end by itself."""
CLEAR_TREND_SECONDS = 30.0


def divergences(job: Job) -> Iterator[Condition]:
    """Yield groups whose members issued different calls under one number, which nobody may have noticed yet."""
    for group in job.groups:
        parting = group.parting()
        if parting is None:
            continue
        sides = [f"{named(side.ranks)} issued {side.call}" for side in parting.sides]
        yield Condition(
            kind=Kind.DIVERGENCE,
            incident=f"divergence {group.name} {parting.seq}",
            summary=f"call {parting.seq} of group {group.label} is not the same on all ranks: " + ", ".join(sides),
            ranks=parting.minority,
            evidence=(parting.evidence,),
        )


def non_finite(job: Job) -> Iterator[Condition]:
    """Yield a loss that is no number any more."""
    found = [(state, name) for state in job.ranks.values() for name in _non_finite_losses(state)]
    if not found:
        return
    first, name = min(found, key=lambda each: (each[0].step, each[0].rank))
    yield Condition(
        kind=Kind.NON_FINITE,
        incident="non-finite",
        summary=f"{name} of {named(state.rank for state, _ in found)} is {first.facts[name]} since step "
        f"{max(first.step - 1, 0)} or a little before",
        ranks=tuple(sorted({state.rank for state, _ in found})) if len(found) < len(job.ranks) else (),
    )


def _non_finite_losses(state: RankState) -> Iterator[str]:
    for name, value in state.facts.items():
        if name.endswith("loss") and isinstance(value, str) and value.lower() in NO_NUMBERS:
            yield name


def replica_desyncs(job: Job) -> Iterator[Condition]:
    """Yield replicas of one model that are no longer equal."""
    desyncs = [each for replicas in {s.groups.replicas for s in job.ranks.values()} for each in replicas.desyncs()]
    for desync in desyncs[:1]:
        found = desync.found
        others = [rank for rank in found.checksums if rank not in found.odd]
        who = f"the model on {named(found.odd)} differs from that on {named(others)}"
        if not found.odd:
            why = "whose gradients the script averages by itself" if desync.by_hand else "which should be equal"
            who = f"the models on {named(found.checksums)}, {why}, differ"
        what = f"{len(found.differing)} of {found.parameters} parameters, first {name_of(desync.names, found)}"
        before = "when first compared" if desync.equal_step is None else f"all were equal in step {desync.equal_step}"
        sums = ", ".join(f"rank {rank} {value:08x}" for rank, value in sorted(found.checksums.items())[:MOST_SUMS])
        yield Condition(
            kind=Kind.REPLICA_DESYNC,
            incident=f"replica-desync {desync.wrapper} {desync.members[0]}",
            summary=f"{who} since step {desync.step}: {what}; {before}",
            ranks=found.odd,
            evidence=(f"checksums before the update of step {desync.step}: {sums}",),
            confirm_seconds=CONFIRM_SECONDS,
        )


def memory_trends(job: Job) -> Iterator[Condition]:
    """Yield ranks whose memory grows steadily and will run out soon."""
    for state in job.living:
        left = _runs_out_in(list(state.memory)) if state.step > WARM_UP_STEPS else None
        if left is None or left > RUNS_OUT_SECONDS:
            continue
        first, last = state.memory[0], state.memory[-1]
        limit = last.limit_bytes or 0
        yield Condition(
            kind=Kind.MEMORY,
            incident=f"memory {state.rank}",
            summary=f"memory of rank {state.rank} grows steadily and runs out in about {lasting(left)}: "
            f"{last.used_bytes / 2**30:.1f} of {limit / 2**30:.1f} GiB",
            ranks=(state.rank,),
            evidence=(
                f"it grew by {(last.used_bytes - first.used_bytes) / 2**20:.0f} MiB "
                f"in {lasting((last.time_ns - first.time_ns) / 1e9)}",
            ),
            confirm_seconds=2.0,
            clear_seconds=CLEAR_TREND_SECONDS,
        )


def _runs_out_in(samples: Sequence[MemorySample]) -> float | None:
    """Return in how many seconds memory runs out; None where it does not grow steadily."""
    if len(samples) < LEAST_SAMPLES or samples[-1].limit_bytes is None:
        return None
    third = len(samples) // 3
    bands = [samples[:third], samples[third:-third], samples[-third:]]
    early, middle, late = (statistics.median(s.used_bytes for s in band) for band in bands)
    times = [statistics.median(s.time_ns for s in band) / 1e9 for band in bands]
    if samples[-1].time_ns - samples[0].time_ns < LEAST_SPAN_SECONDS * 1e9 or not early < middle < late:
        return None
    before, after = (middle - early) / (times[1] - times[0]), (late - middle) / (times[2] - times[1])
    if after < STEADY * before:
        return None
    growth = (late - early) / (times[2] - times[0])
    return max(samples[-1].limit_bytes - samples[-1].used_bytes, 0) / growth


def slow_checkpoints(job: Job) -> Iterator[Condition]:
    """Yield ranks that have been saving for far longer than ever before."""
    slow: dict[int, tuple[float, float]] = {}
    for state in job.living:
        found = _saving(state)
        if found is None:
            continue
        name, begun = found
        lasts = (state.last_ns - begun) / 1e9 + job.silence(state)
        floor = state.header.stall_after_seconds
        longest = state.longest_ns.get(name, 0) / 1e9
        limit = max(floor, LONGEST_SAVES * longest) if longest else LONGEST_SAVES * floor
        if lasts > limit:
            slow[state.rank] = lasts, limit
    if not slow:
        return
    first = max(slow, key=lambda rank: slow[rank][0])
    lasts, limit = slow[first]
    yield Condition(
        kind=Kind.CHECKPOINT,
        incident="checkpoint",
        summary=f"{named(slow)} saves for {lasting(lasts)} (limit {lasting(limit)}), far longer than before",
        ranks=tuple(sorted(slow)),
        limit_seconds=limit,
        confirm_seconds=0.9,
    )


def _saving(state: RankState) -> tuple[str, int] | None:
    phase = state.user_phase()
    if phase is not None and any(word in phase.name.lower() for word in SAVING):
        return phase.name, phase.begun_ns
    return ("checkpoint", state.activity_since_ns) if state.activity == "checkpoint" else None
