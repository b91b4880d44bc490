"""Watching a job: look, learn, raise alarms and have them explained; who cannot meet is told before anything hangs."""

import time
from collections.abc import Iterator
from pathlib import Path

from distdiag.live.alarms import Alarms, Change, Condition, Kind, lasting
from distdiag.live.deaths import deaths
from distdiag.live.job import Job
from distdiag.live.ranks import RankState
from distdiag.live.signs import divergences, memory_trends, non_finite, replica_desyncs, slow_checkpoints
from distdiag.live.slowness import own_times, stragglers
from distdiag.live.standstill import CONFIRM_SECONDS, HALT, START_SECONDS, standstill
from distdiag.live.tailing import Follower
from distdiag.live.verdicts import Investigator
from distdiag.wording import named

LEAST_SECONDS = 3.0
"""Who has waited for less may still meet the others."""
LEAST_TOLD = 3
"""Of fewer ranks none is the odd one."""
MOST_SIDES = 4
SLOW_SIGNS_SECONDS = 3.0
"""What needs a window of time is looked for less often."""
RECENT_ALARMS = 20


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


class Watch:
    """A job as its logs tell it, and the alarms that it gives cause for."""

    def __init__(self, logs: Path, *, explain: bool = True) -> None:
        self.logs = logs
        self.job = Job()
        self.follower = Follower(logs)
        self.alarms = Alarms()
        self.history: list[Change] = []
        """What happened to alarms, newest last."""
        self.investigator = Investigator(logs) if explain else None
        self._slow_signs: list[Condition] = []
        self._slow_looked = 0.0

    def look(self, now: float | None = None, wall_ns: int | None = None) -> list[Change]:
        """Read what was appended and return what became of alarms."""
        now = time.monotonic() if now is None else now
        wall_ns = time.time_ns() if wall_ns is None else wall_ns
        self.job.take(self.follower.look(), now, wall_ns)
        changes = self.alarms.update(self._conditions(now), now, wall_ns)
        changes += self._explained(changes)
        self.history = [*self.history, *changes][-RECENT_ALARMS:]
        return changes

    def close(self) -> None:
        """End what runs in the background."""
        if self.investigator is not None:
            self.investigator.close()

    @property
    def present(self) -> bool:
        """Return whether the directory of logs is there."""
        return self.follower.present

    @property
    def ended(self) -> bool:
        """Return whether all ranks told their end."""
        return self.job.ended

    @property
    def explaining(self) -> bool:
        """Return whether a verdict may still come."""
        return self.investigator is not None and self.investigator.busy

    def _conditions(self, now: float) -> Iterator[Condition]:
        if not self.follower.present:
            return  # the logs are gone, and nothing can be said of the job
        job = self.job
        dead = list(deaths(job))
        yield from dead
        if job.left:
            return  # what ends nobody watched; that is no news now
        if not dead:
            yield from list(unmet(job)) or standstill(job)
        yield from divergences(job)
        yield from non_finite(job)
        yield from replica_desyncs(job)
        yield from slow_checkpoints(job)
        if now - self._slow_looked >= SLOW_SIGNS_SECONDS:
            self._slow_looked = now
            halted = HALT in self.alarms.active
            self._slow_signs = [] if halted else [*stragglers(own_times(job)), *memory_trends(job)]
        yield from self._slow_signs

    def _explained(self, changes: list[Change]) -> list[Change]:
        if self.investigator is None:
            return []
        if any(change.what == "raised" for change in changes):
            self.investigator.ask()
        verdict = self.investigator.verdict()
        return self.alarms.explain(verdict) if verdict is not None else []
