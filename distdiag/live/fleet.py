"""A job of many hosts, watched through what the agents of these hosts say: one small file each, not one log a rank."""

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from distdiag import events
from distdiag.live.alarms import Alarms, Change, Condition, Kind, lasting
from distdiag.live.deaths import Dead, death_of, far_ahead
from distdiag.live.nodes import ENDING, FOLDER, NodeSummary, decoded
from distdiag.live.slowness import OwnTime, stragglers
from distdiag.live.snapshot import GroupRow, Snapshot
from distdiag.live.standstill import CONFIRM_SECONDS, HALT, START_SECONDS
from distdiag.live.verdicts import Investigator
from distdiag.wording import named

SILENT_SECONDS = 10.0
"""An agent writes once a second; its host, or it, is gone when nothing comes for so long."""
FRESH_SECONDS = 60.0
"""Summaries that are older than that at the first look are of an earlier time."""
SLOW_SIGNS_SECONDS = 3.0
MOST_PLACES = 4


class _Node:
    """The newest summary of a host, and when it came."""

    __slots__ = ("arrived", "stamp", "summary")

    def __init__(self, summary: NodeSummary, stamp: int, arrived: float) -> None:
        self.summary = summary
        self.stamp = stamp
        self.arrived = arrived


class Fleet:
    """A job as the agents of its hosts tell it, and the alarms that it gives cause for."""

    def __init__(self, logs: Path, *, explain: bool = True) -> None:
        self.logs = logs
        self.alarms = Alarms()
        self.present = False
        self.investigator = Investigator(logs) if explain else None
        self._nodes: dict[str, _Node] = {}
        self._launch: list[NodeSummary] = []
        """The summaries of the newest launch."""
        self._missing: tuple[int, ...] = ()
        """Ranks of which no host tells."""
        self._began = 0.0
        self._now = 0.0
        self._slow_signs: list[Condition] = []
        self._slow_looked = 0.0

    def look(self, now: float | None = None, wall_ns: int | None = None) -> list[Change]:
        """Read the summaries that are new and return what became of alarms."""
        now = time.monotonic() if now is None else now
        self._began = self._began or now
        self._now = now
        self._read(now)
        self._launch = self._newest()
        self._missing = self._untold()
        changes = self.alarms.update(self._conditions(), now, time.time_ns() if wall_ns is None else wall_ns)
        if self.investigator is not None:
            if any(change.what == "raised" for change in changes):
                self.investigator.ask()
            verdict = self.investigator.verdict()
            changes += self.alarms.explain(verdict) if verdict is not None else []
        return changes

    def close(self) -> None:
        """End what runs in the background."""
        if self.investigator is not None:
            self.investigator.close()

    @property
    def explaining(self) -> bool:
        """Return whether a verdict may still come."""
        return self.investigator is not None and self.investigator.busy

    @property
    def ended(self) -> bool:
        """Return whether all ranks of all hosts told their end."""
        return bool(self._nodes) and not self._missing and all(not each.living for each in self._launch)

    def snapshot(self) -> Snapshot:
        """Return what the job looks like now: of each host the ranks in most trouble."""
        nodes = self._launch
        alarms = tuple(self.alarms.active.values())
        rates = [each.steps_per_second for each in nodes if each.steps_per_second is not None]
        tokens = [each.tokens_per_second for each in nodes if each.tokens_per_second is not None]
        left = [each.remaining_seconds for each in nodes if each.remaining_seconds is not None]
        steps = [each.step for each in nodes if each.step is not None]
        states: dict[str, int] = {}
        for node in nodes:
            for state, count in node.states.items():
                states[state] = states.get(state, 0) + count
        return Snapshot(
            wall_ns=time.time_ns(),
            logs=str(self.logs),
            health=self._health(),
            world_size=max((each.world_size for each in nodes), default=0),
            missing=self._missing,
            attempt=max((each.attempt for each in nodes), default=0),
            ended=self.ended,
            step=int(statistics.median_low(steps)) if steps else None,
            steps_per_second=statistics.median(rates) if rates else None,
            tokens_per_second=sum(tokens) if tokens else None,
            remaining_seconds=max(left, default=None),
            ranks=tuple(row for each in nodes for row in each.rows),
            groups=tuple(self._groups(nodes)),
            alarms=alarms,
            notes=(),
            hosts={each.host: len(events.unfolded(each.ranks)) for each in nodes},
            states=states,
        )

    def _read(self, now: float) -> None:
        try:
            with os.scandir(self.logs / FOLDER) as entries:
                files = [(entry.name, entry.stat().st_mtime_ns) for entry in entries]
        except OSError:
            self.present = False
            return
        self.present = True
        for name, stamp in files:
            node = self._nodes.get(name)
            stale = node is None and time.time() - stamp / 1e9 > FRESH_SECONDS
            if not name.endswith(ENDING) or name.startswith(".") or stale or (node is not None and node.stamp == stamp):
                continue
            try:
                summary = decoded(_content(f"{self.logs / FOLDER}/{name}"))
            except OSError:
                continue
            if summary is not None:
                self._nodes[name] = _Node(summary, stamp, now)

    def _newest(self) -> list[NodeSummary]:
        """Return the summaries of the newest launch."""
        summaries = [node.summary for node in self._nodes.values()]
        if not summaries:
            return []
        newest = max(summaries, key=lambda each: (each.attempt, each.wall_ns))
        return [each for each in summaries if (each.run, each.attempt) == (newest.run, newest.attempt)]

    def _silent(self) -> list[NodeSummary]:
        late = {id(node.summary) for node in self._nodes.values() if self._now - node.arrived > SILENT_SECONDS}
        return [each for each in self._launch if id(each) in late and each.living]

    def _untold(self) -> tuple[int, ...]:
        nodes = self._launch
        told = {rank for each in nodes for rank in events.unfolded(each.ranks)}
        return tuple(rank for rank in range(max((each.world_size for each in nodes), default=0)) if rank not in told)

    def _conditions(self) -> Iterator[Condition]:
        nodes = self._launch
        if not nodes or not self.present:
            return
        halted = list(self._deaths(nodes)) or list(self._standstill(nodes))
        yield from halted
        seen = set()
        for condition in (condition for each in nodes for condition in each.conditions):
            if condition.incident not in seen:  # a loss that is no number is the same on all hosts
                seen.add(condition.incident)
                yield condition
        if self._now - self._slow_looked >= SLOW_SIGNS_SECONDS:
            self._slow_looked = self._now
            own: dict[int, OwnTime] = {rank: times for each in nodes for rank, times in each.own.items()}
            self._slow_signs = [] if halted else list(stragglers(own))
        yield from self._slow_signs

    def _deaths(self, nodes: list[NodeSummary]) -> Iterator[Condition]:
        dead = self._dead(nodes)
        if dead:
            yield death_of(dead, (), (), anybody_lives=any(each.living for each in nodes))
            return
        silent = self._silent()
        if silent:
            ranks = sorted(rank for each in silent for rank in events.unfolded(each.ranks))
            hosts = ", ".join(sorted(each.host for each in silent)[:MOST_PLACES])
            yield Condition(
                kind=Kind.DEATH,
                incident=HALT,
                summary=f"nothing is heard of {len(silent)} of {len(nodes)} hosts ({hosts}), which have {named(ranks)}",
                ranks=tuple(ranks),
                evidence=("the host is gone, or only its agent is",),
                confirm_seconds=CONFIRM_SECONDS,
            )

    def _dead(self, nodes: list[NodeSummary]) -> list[Dead]:
        """Return the dead ranks of all hosts in the order of time, wrong clocks of hosts put right."""
        stamps = {node.summary.host: node.stamp for node in self._nodes.values()}
        ahead = far_ahead({each.host: each.wall_ns - stamps[each.host] for each in nodes if each.host in stamps})
        dead = [each._replace(wall_ns=each.wall_ns - ahead.get(node.host, 0)) for node in nodes for each in node.dead]
        return sorted(dead, key=lambda each: (each.wall_ns, each.rank))

    def _standstill(self, nodes: list[NodeSummary]) -> Iterator[Condition]:
        living = [each for each in nodes if each.living]
        starting = bool(self._missing) and self._now - self._began < START_SECONDS
        if not living or starting or any(each.moving for each in living):
            return
        still = min(each.still_seconds for each in living)
        limit = max(each.limit_seconds for each in living)
        suspects = _suspected(nodes)
        first = set(suspects)
        ordered = sorted(living, key=lambda each: (not first & set(events.unfolded(each.ranks)), each.host))
        places = [place for each in ordered for place in each.places]
        yield Condition(
            kind=Kind.STALL,
            incident=HALT,
            summary=f"no rank made progress for {lasting(still)} (limit {lasting(limit)}): " + "; ".join(places[:2]),
            ranks=suspects,
            evidence=tuple(places[:MOST_PLACES]),
            limit_seconds=limit,
            confirm_seconds=CONFIRM_SECONDS,
        )

    def _health(self) -> str:
        alarms = list(self.alarms.active.values())
        if alarms:
            more = f" (and {len(alarms) - 1} more)" if len(alarms) > 1 else ""
            return f"{alarms[0].kind.upper()} {alarms[0].condition.summary}{more}"
        if not self._nodes:
            return f"waiting for agents to write into {self.logs / FOLDER}"
        if self.ended:
            return "all ranks have ended"
        missing = self._missing
        return f"{named(missing)} left no log yet, or have no agent" if missing else "healthy"

    def _groups(self, nodes: list[NodeSummary]) -> Iterator[GroupRow]:
        found: dict[tuple[str, str], tuple[str, dict[int, int]]] = {}
        for group in (group for each in nodes for group in each.groups):
            found.setdefault((group.name, group.members), (group.label, {}))[1].update(group.seqs)
        for (_, members), (label, seqs) in found.items():
            newest = max(seqs.values(), default=0)
            yield GroupRow(
                group=label,
                ranks=members,
                members=len(events.unfolded(members)),
                newest=newest,
                behind={rank: newest - seq for rank, seq in seqs.items() if seq < newest},
                parted_at=None,
            )


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _suspected(nodes: list[NodeSummary]) -> tuple[int, ...]:
    """Return the ranks that others wait for in a collective and that wait for nobody."""
    seqs = {(g.name, g.members, rank): seq for each in nodes for g in each.groups for rank, seq in g.seqs.items()}
    awaited = {waited for each in nodes for waited in each.waiting.values()}
    told = {rank for each in nodes for rank in events.unfolded(each.ranks)}
    free = {rank for each in nodes for rank in each.free}
    suspects = {
        rank
        for name, members, seq in awaited
        for rank in events.unfolded(members)
        if (rank in free or rank not in told) and seqs.get((name, members, rank), 0) < seq
    }
    return tuple(sorted(suspects))
