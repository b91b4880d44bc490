"""Watching a job: look, learn, raise alarms, and have them explained."""

import time
from collections.abc import Iterator
from pathlib import Path

from distdiag.live.alarms import Alarms, Change, Condition
from distdiag.live.deaths import deaths
from distdiag.live.job import Job
from distdiag.live.joining import unmet
from distdiag.live.signs import divergences, memory_trends, non_finite, replica_desyncs, slow_checkpoints
from distdiag.live.slowness import own_times, stragglers
from distdiag.live.standstill import HALT, standstill
from distdiag.live.tailing import Follower
from distdiag.live.verdicts import Investigator

SLOW_SIGNS_SECONDS = 3.0
"""What needs a window of time is looked for less often."""
RECENT_ALARMS = 20


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
