"""Which schedule a pipeline runs, from the number and order of its messages: GPipe, 1F1B or interleaved 1F1B.

With p stages of one rank each and m micro-batches, every neighbour gets m activations and gives m gradients back. What
a stage sends before the first gradient comes tells the schedule: all m in GPipe (Huang et al. 2019); p - s of stage s
in 1F1B (Narayanan et al. 2019), where the last stage alternates from the first micro-batch on. Where each rank holds v
stages (interleaved, Narayanan et al. 2021) a neighbour gets v·m activations and the ring's weak link (v-1)·m.

Schedules that split backwards (zero bubble, Qi et al. 2024; DualPipe) send as others do: they are told only where
recording saw them run, and no formula is claimed to hold for them.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdiag.analyzers.performance.pipeline.messages import Exchange, Messages, Pair
from distdiag.analyzers.performance.pipeline.stages import Layout
from distdiag.events import PIPELINE_SCHEDULE
from distdiag.run import Run

GPIPE, ONE_BY_ONE, INTERLEAVED, UNKNOWN = "GPipe", "1F1B", "interleaved 1F1B", "unknown"
CALLED = {
    "ScheduleGPipe": GPIPE,
    "Schedule1F1B": ONE_BY_ONE,
    "ScheduleInterleaved1F1B": INTERLEAVED,
}
"""Schedules of PyTorch whose messages tell them."""
OTHERS = frozenset({"ScheduleLoopedBFS"})
"""Schedules of PyTorch that have no name here."""
AGREEING = 0.8
"""Share of the steps that have to have the same messages for a schedule to be told."""
POSTED_EARLY = 1
"""Receives may be posted one micro-batch before they are needed, to hide them."""
MOST_CHUNKS = 16
"""Stages of one rank; more are not tried."""
ZERO = Exchange(
    sends=0, receives=0, sends_first=0, receives_first=0, sends_before=0, receives_before=0, agreeing=1.0
)  # fmt: skip
SPLIT = {
    "ScheduleInterleavedZeroBubble": "interleaved zero bubble",
    "ScheduleZBVZeroBubble": "ZBV zero bubble",
    "ScheduleDualPipeV": "DualPipeV",
}
"""Schedules of PyTorch that split backwards: the formula of the bubble holds for none of them."""
FOLDED = frozenset({"ScheduleZBVZeroBubble", "ScheduleDualPipeV"})
"""Their stages go down the ranks and up again: the first rank also holds the last stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What a pipeline does in each step."""

    name: str
    """As people call it, or ``unknown``."""
    why_unknown: str | None = None
    microbatches: int | None = None
    virtual_stages: int | None = None
    """Stages of each rank."""

    @property
    def has_formula(self) -> bool:
        """Return whether it is a schedule for which the bubble's formula holds."""
        return self.name in (GPIPE, ONE_BY_ONE, INTERLEAVED)


class NoPipelineError(ValueError):
    """Messages go one way only: whatever it is, it is not trained as a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The schedule that every rank of a run said it runs."""

    schedule: str
    """Name of its class."""
    microbatches: int
    virtual_stages: int
    """Stages of each rank."""

    @property
    def name(self) -> str | None:
        """Return what people call it where messages would not tell it."""
        return SPLIT.get(self.schedule)

    @property
    def is_folded(self) -> bool:
        """Return whether the first rank also holds the last stage."""
        return self.schedule in FOLDED


def told_schedule(run: Run) -> Told | None:
    """Return the schedule that all ranks tell; None where they tell none, or several."""
    said = run.decisions[run.decisions["name"] == PIPELINE_SCHEDULE]
    values = [value for value in said["value"] if isinstance(value, Mapping)]
    told = {_told(value) for value in values}
    if len(told) != 1 or len(values) < len(said) or set(said["rank"]) != set(run.ranks):
        return None
    return told.pop()


def _told(value: Mapping[str, Any]) -> Told:
    return Told(
        schedule=str(value.get("schedule")),
        microbatches=int(value.get("microbatches") or 0),
        virtual_stages=int(value.get("stages") or 0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """Micro-batches, stages of a rank, and messages of one micro-batch between two stages."""

    microbatches: int
    chunks: int
    tensors: int


def schedule_of(messages: Messages, layout: Layout, told: Told | None = None) -> Schedule:
    """Return the schedule, from messages and what recording tells; ``NoPipelineError`` where nothing comes back."""
    forward, back = _boundaries(messages, layout)
    if not any(each.sends for each in back):
        raise NoPipelineError("messages go one way only, no gradients come back")
    if told is not None and told.name is not None:
        return Schedule(name=told.name, microbatches=told.microbatches, virtual_stages=told.virtual_stages)
    found = _from_messages(messages, layout, forward, back)
    return _checked(found, told) if told is not None else found


def _checked(found: Schedule, told: Told) -> Schedule:
    """Return what messages tell, where recording does not tell of another one that they look like."""
    of_torch = CALLED.get(told.schedule)
    if not found.has_formula or of_torch == found.name:
        return found
    numbers = told.microbatches, told.virtual_stages
    if of_torch is None and told.schedule not in OTHERS and numbers == (found.microbatches, found.virtual_stages):
        return found  # somebody's own class, whose messages are those of a schedule that is known
    return Schedule(
        name=UNKNOWN,
        why_unknown=f"it runs {told.schedule}, whose messages look like those of {found.name}",
        microbatches=numbers[0],
        virtual_stages=numbers[1],
    )


def _from_messages(
    messages: Messages, layout: Layout, forward: Sequence[Exchange], back: Sequence[Exchange]
) -> Schedule:
    if min(each.agreeing for each in (*forward, *back)) < AGREEING:
        return _unknown("the number of messages changes from step to step")
    counts = {(there.sends, here.sends) for there, here in zip(forward, back, strict=True)}
    if len({count for pair in counts for count in pair}) > 1:
        return _unknown("neighbouring stages exchange different numbers of messages")
    counted = _counted(messages, layout, forward, back)
    return counted if isinstance(counted, Schedule) else _named(counted, forward, back, layout)


def _unknown(why: str) -> Schedule:
    return Schedule(name=UNKNOWN, why_unknown=why)


def _boundaries(messages: Messages, layout: Layout) -> tuple[list[Exchange], list[Exchange]]:
    """Return what stages exchange with the next one, and what that one exchanges with them, chain by chain."""
    pairs: list[Pair] = [pair for chain in layout.chains for pair in itertools.pairwise(chain)]
    forward = [messages.exchanges.get(pair, ZERO) for pair in pairs]
    return forward, [messages.exchanges.get((after, before), ZERO) for before, after in pairs]


def _counted(
    messages: Messages, layout: Layout, forward: Sequence[Exchange], back: Sequence[Exchange]
) -> _Counted | Schedule:
    """Return the numbers of a schedule, or why they are unknown."""
    backwards = {messages.backwards.get(rank, 0) for chain in layout.chains for rank in chain}
    if len(backwards) > 1 or (messages.forwards and not any(backwards)):
        seen = "ranks run different numbers of whole backwards" if any(backwards) else "no whole backward was seen"
        return _unknown(f"{seen}, as with schedules that split them (zero bubble)")
    return _of_passes(messages, layout, forward, back, backwards.pop())


def _of_passes(
    messages: Messages, layout: Layout, forward: Sequence[Exchange], back: Sequence[Exchange], passes: int
) -> _Counted | Schedule:
    """Return the numbers of a schedule whose ranks run so many backwards in a step."""
    sent = forward[0].sends
    if layout.ring:
        return _in_ring(messages, layout, sent, passes)
    # Without virtual stages a rank has nothing to send back before its first backward.
    both_ways = passes > 0 and any(each.sends_before for each in back)
    if not both_ways:
        if not passes:
            return _Counted(microbatches=sent, chunks=1, tensors=1)
        if sent % passes == 0:
            return _Counted(microbatches=passes, chunks=1, tensors=sent // passes)
    elif len(layout.chains[0]) == 2:
        for chunks in range(2, MOST_CHUNKS + 1):
            tensors, left = divmod(sent * chunks, passes * (2 * chunks - 1))
            if not left and tensors and passes % chunks == 0:
                return _Counted(microbatches=passes // chunks, chunks=chunks, tensors=tensors)
    if both_ways:
        return _unknown(
            "stages send back before their first backward: ranks hold several stages in an order that is not known here"
        )
    return _unknown(
        f"{sent} messages to the next stage do not fit {passes} backwards in a step: these may be split, or recompute"
    )


def _in_ring(messages: Messages, layout: Layout, sent: int, passes: int) -> _Counted | Schedule:
    """Return the numbers of a pipeline whose last rank hands work to the first."""
    wraps = {
        messages.exchanges.get(pair, ZERO).sends
        for chain in layout.chains
        for pair in ((chain[-1], chain[0]), (chain[0], chain[-1]))
    }
    of_chunk = sent - max(wraps)
    if len(wraps) > 1 or of_chunk <= 0 or sent % of_chunk:
        return _unknown("the messages from the last rank to the first do not fit those between the others")
    chunks = sent // of_chunk
    tensors, left = divmod(sent, passes) if passes else (1, 0)
    if left or not tensors or of_chunk % tensors:
        return _unknown(f"{sent} messages to the next rank do not fit {passes} backwards in a step")
    return _Counted(microbatches=of_chunk // tensors, chunks=chunks, tensors=tensors)


def _named(counted: _Counted, forward: Sequence[Exchange], back: Sequence[Exchange], layout: Layout) -> Schedule:
    """Return the schedule of known numbers, its name from the order of messages."""
    m, v, stages = counted.microbatches, counted.chunks, len(layout.chains[0])
    name, why = UNKNOWN, None
    if m == 1 and v == 1:
        why = "with one micro-batch a step all schedules are the same"
    elif v > 1:
        name = INTERLEAVED if _least_ahead(layout, forward, back) < v * m * counted.tensors else UNKNOWN
        why = None if name == INTERLEAVED else "all forwards of a rank come before its first backward"
    else:
        ahead = [[each.sends_first for each in part] for part in _per_chain(forward, stages - 1)]
        last = [part[-1].receives_first for part in _per_chain(back, stages - 1)]
        name = _of_order([[*some, one] for some, one in zip(ahead, last, strict=True)], m, counted.tensors)
        why = "stages begin their backwards at other micro-batches than GPipe or 1F1B do" if name == UNKNOWN else None
    return Schedule(name=name, why_unknown=why, microbatches=m, virtual_stages=v)


def _per_chain(each: Sequence[Exchange], boundaries: int) -> list[Sequence[Exchange]]:
    return [each[start : start + boundaries] for start in range(0, len(each), boundaries)]


def _least_ahead(layout: Layout, forward: Sequence[Exchange], back: Sequence[Exchange]) -> int:
    """Return how many activations stand before the first gradient where the fewest do.

    In a ring, gradients alone come from the next rank. Two ranks exchange both; there the last rank's first backward
    tells, by which it has received what its forwards needed.
    """
    if layout.ring:
        return min(each.sends_first for each in forward)
    return min(each.receives_before for each in back)


def _of_order(ahead: Sequence[Sequence[int]], m: int, tensors: int) -> str:
    """Return the schedule whose stages have so many messages before the first gradient."""
    if all(count == m * tensors for stages in ahead for count in stages):
        return GPIPE
    expected = [min(len(ahead[0]) - stage, m) for stage in range(len(ahead[0]))]
    fits = all(
        0 <= count - most * tensors <= POSTED_EARLY * tensors
        for stages in ahead
        for count, most in zip(stages, expected, strict=True)
    )
    return ONE_BY_ONE if fits else UNKNOWN
