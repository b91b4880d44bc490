"""Ranks that wait for one another at different places, for worlds of different sizes, or as the same rank."""

from collections.abc import Iterator

from distdiag.live.alarms import Condition, Kind
from distdiag.live.job import Job
from distdiag.live.ranks import RankState
from distdiag.live.standstill import CONFIRM_SECONDS, HALT, START_SECONDS
from distdiag.live.wording import lasting
from distdiag.wording import named

LEAST_SECONDS = 3.0
"""Who has waited for less may still meet the others."""
LEAST_TOLD = 3
"""Of fewer ranks none is the odd one."""
MOST_SIDES = 4


def unmet(job: Job) -> Iterator[Condition]:
    """Yield that all ranks wait to join and cannot meet; only once those that are still to come had time to start."""
    living = job.living
    waited = [(state.last_ns - state.joining.time_ns) / 1e9 for state in living if state.joining is not None]
    least = START_SECONDS if job.missing else LEAST_SECONDS
    if len(living) < 2 or len(waited) < len(living) or min(waited) < least:
        return
    sides = _sides(living)
    if sides is None:
        return
    ordered = sorted(sides.items(), key=lambda side: (-len(side[1]), side[1]))
    decided = len(living) >= LEAST_TOLD and 2 * len(ordered[0][1]) > len(living)
    told = ", ".join(f"{named(ranks)} {words}" for words, ranks in ordered[:MOST_SIDES])
    yield Condition(
        kind=Kind.STALL,
        incident=HALT,
        summary=f"the ranks do not meet: {told}; they wait for {lasting(min(waited))}",
        ranks=tuple(sorted(rank for _, ranks in ordered[1:] for rank in ranks)) if decided else (),
        confirm_seconds=CONFIRM_SECONDS,
    )


def _sides(living: list[RankState]) -> dict[str, list[int]] | None:
    """Return how ranks join that cannot meet, with those that join so; None where nothing keeps them apart.

    A host has several names, so other addresses alone are no other places: other ports and files are.
    """
    for words_of in (_place, _world, _number):
        sides: dict[str, list[int]] = {}
        for state in living:
            sides.setdefault(words_of(state), []).append(state.rank)
        differ = len(sides) < len(living) if words_of is _number else len(sides) > 1 and "" not in sides
        if differ:
            return {words: ranks for words, ranks in sides.items() if words_of is not _number or len(ranks) > 1}
    return None


def _place(state: RankState) -> str:
    phase = state.joining
    return "" if phase is None else f"joined at {phase.address if phase.port is None else f'port {phase.port}'}"


def _world(state: RankState) -> str:
    size = None if state.joining is None else state.joining.world_size
    return "" if size is None else f"joined a world of {size}"


def _number(state: RankState) -> str:
    number = None if state.joining is None else state.joining.as_rank
    return f"joined as rank {state.rank if number is None else number}"
