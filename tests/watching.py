"""A job made by hand that is watched while it goes on: its logs grow, and looks happen at moments of its own time.

watched = Watched(tmp_path, world_size=3)
watched.train(steps=10, own={2: 0.13})
assert watched.look() == []
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distdiag import events
from distdiag.live.alarms import Alarm, Change
from distdiag.live.watch import Watch
from tests.logs import MONOTONIC_NS, SECOND_NS, Logs

OWN_SECONDS = 0.1
"""What a rank computes in each step."""
STALL_SECONDS = 5.0


class Watched:
    """Logs that grow, and who watches them."""

    def __init__(self, directory: Path, world_size: int = 2, *, attempt: int = 0) -> None:
        self.directory = directory
        self.logs = self.new_logs(world_size, attempt)
        self.watch = Watch(directory, explain=False)
        self.seconds = 0.0

    def new_logs(self, world_size: int, attempt: int) -> Logs:
        """Return logs of one more launch; a rank in them stalls after five seconds."""
        logs = Logs(world_size, attempt=attempt)
        for rank in logs:
            rank.header.stall_after_seconds = STALL_SECONDS
        return logs

    def train(
        self, steps: int, *, own: Mapping[int, float] | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Let all ranks make steps: each computes, then waits for the slowest in an all_reduce, and gives a pulse."""
        for _ in range(steps):
            takes = {log.rank: (own or {}).get(log.rank, OWN_SECONDS) for log in self.logs}
            slowest = max(takes.values())
            for log in self.logs:
                log.at(self.seconds + takes[log.rank])
                wait = slowest - takes[log.rank]
                log.all_reduce("train.py:10 step", seconds=wait)
                log.add(
                    events.Step(
                        step=log.step,
                        start_ns=MONOTONIC_NS + round(self.seconds * SECOND_NS),
                        end_ns=log.now_ns,
                        calls=log.calls,
                        facts=dict(facts or {}),
                    )
                )
                log.step += 1
                log.pulse("train.py:12 main")
            self.seconds += slowest

    def beat(self, seconds: float, *, without: tuple[int, ...] = (), **pulse: Any) -> None:
        """Let time pass in which ranks show nothing but signs of life."""
        for log in self.logs.but(*without):
            log.at(self.seconds)
            for _ in range(round(seconds)):
                log.sleep(1.0).pulse(**{"site": "train.py:12 main", **pulse})
        self.seconds += seconds

    def look(self, seconds: float | None = None) -> list[Change]:
        """Look at the logs as they are, at a moment of the job."""
        self._append()
        now = self.seconds if seconds is None else seconds
        return self.watch.look(now, MONOTONIC_NS + round(now * SECOND_NS))

    def _append(self) -> None:
        attempt = f".attempt{self.logs.attempt}" if self.logs.attempt else ""
        for rank, log in self.logs.ranks.items():
            with (self.directory / f"rank{rank:05d}{attempt}.jsonl").open("ab") as file:
                file.write(encoded(*log.records))
            log.records.clear()

    def look_twice(self) -> list[Change]:
        """Look now and a second later: what has to be seen twice is an alarm then."""
        return [*self.look(), *self.look(self.seconds + 1.0)]

    def pass_by(self, seconds: float, **beat: Any) -> list[Change]:
        """Let time pass with a look every second, and return what became of alarms."""
        changes = []
        for _ in range(round(seconds)):
            self.beat(1.0, **beat)
            changes += self.look()
        return changes


def raised(changes: list[Change]) -> list[Alarm]:
    """Return the alarms that were raised."""
    return [change.alarm for change in changes if change.what == "raised"]


def cleared(changes: list[Change]) -> list[Alarm]:
    """Return the alarms that were cleared."""
    return [change.alarm for change in changes if change.what == "cleared"]


def encoded(*records: events.Event) -> bytes:
    """Return the lines of records."""
    return b"".join(map(events.encode, records))
