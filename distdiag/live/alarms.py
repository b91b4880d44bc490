"""Alarms: one per incident, raised when what is seen lasts, cleared when it is over."""

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distdiag.wording import named

_PLURAL = {"waits": "wait", "is": "are", "gives": "give", "has": "have"}


class Kind(enum.StrEnum):
    """What an alarm is about."""

    STALL = "stall"
    DEATH = "death"
    DIVERGENCE = "divergence"
    NON_FINITE = "non-finite"
    REPLICA_DESYNC = "replica-desync"
    STRAGGLER = "straggler"
    MEMORY = "memory"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something wrong that is seen at one moment."""

    kind: Kind
    incident: str
    """The same as long as it is one incident; a stall that turns out to be a death stays the same."""
    summary: str
    ranks: tuple[int, ...] = ()
    """The ranks to look at; none where that is not known."""
    evidence: tuple[str, ...] = ()
    limit_seconds: float | None = None
    """The limit that was exceeded, where there is one."""
    confirm_seconds: float = 0.0
    """For how long it has to be seen before it is an alarm."""
    clear_seconds: float = 3.0
    """For how long it has to be gone before the alarm is cleared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """An incident that was reported."""

    number: int
    condition: Condition
    raised_wall_ns: int
    cleared_wall_ns: int | None = None
    verdict: Mapping[str, Any] | None = None
    """What the analyzers say of the logs at that time, as in ``distdiag.report/1``."""

    @property
    def kind(self) -> Kind:
        """Return what it is about."""
        return self.condition.kind

    def told(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        told = dataclasses.asdict(self.condition)
        for internal in ("incident", "confirm_seconds", "clear_seconds"):
            del told[internal]
        return {
            "number": self.number,
            **told,
            "raised": self.raised_wall_ns / 1e9,
            "cleared": None if self.cleared_wall_ns is None else self.cleared_wall_ns / 1e9,
            "verdict": self.verdict,
        }


class Change(NamedTuple):
    """What became of an alarm: ``raised``, ``changed`` (another kind, other ranks), ``explained`` or ``cleared``."""

    what: str
    alarm: Alarm


@dataclass(slots=True)
class _Seen:
    first: float
    last: float
    condition: Condition
    alarm: Alarm | None = None


@dataclass(slots=True)
class Alarms:
    """Keeps incidents apart; moments are seconds of the watcher's clock."""

    active: dict[str, Alarm] = field(default_factory=dict)
    """By incident."""
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _count: int = 0

    def update(self, conditions: Iterable[Condition], now: float, wall_ns: int) -> list[Change]:
        """Take what is seen now, and return what changed."""
        changes: list[Change] = []
        for condition in conditions:
            seen = self._seen.setdefault(condition.incident, _Seen(now, now, condition))
            seen.last, seen.condition = now, condition
            if seen.alarm is None and now - seen.first >= condition.confirm_seconds:
                self._count += 1
                seen.alarm = Alarm(number=self._count, condition=condition, raised_wall_ns=wall_ns)
                changes.append(Change("raised", seen.alarm))
            elif seen.alarm is not None:
                before = seen.alarm.condition
                seen.alarm = dataclasses.replace(seen.alarm, condition=condition)
                if (before.kind, before.ranks) != (condition.kind, condition.ranks):
                    changes.append(Change("changed", seen.alarm))
        changes += self._cleared(now, wall_ns)
        self.active = {incident: seen.alarm for incident, seen in self._seen.items() if seen.alarm is not None}
        return changes

    @property
    def awaits_confirmation(self) -> bool:
        """Return whether something was seen that the next looks may make an alarm."""
        return any(seen.alarm is None for seen in self._seen.values())

    def explain(self, verdict: Mapping[str, Any]) -> list[Change]:
        """Attach a verdict to the alarms that have none yet, and return these."""
        changes = []
        for incident, seen in self._seen.items():
            if seen.alarm is not None and seen.alarm.verdict is None:
                seen.alarm = self.active[incident] = dataclasses.replace(seen.alarm, verdict=verdict)
                changes.append(Change("explained", seen.alarm))
        return changes

    def _cleared(self, now: float, wall_ns: int) -> list[Change]:
        changes = []
        for incident, seen in list(self._seen.items()):
            gone = now - seen.last
            if seen.alarm is None and gone > 0:
                del self._seen[incident]
            elif seen.alarm is not None and gone >= seen.condition.clear_seconds:
                del self._seen[incident]
                changes.append(Change("cleared", dataclasses.replace(seen.alarm, cleared_wall_ns=wall_ns)))
        return changes


def saying(ranks: Iterable[int], predicate: str) -> str:
    """Write ``rank 5 waits in …`` or ``ranks 0-2,5 wait in …``."""
    wanted = set(ranks)
    verb, _, rest = predicate.partition(" ")
    return f"{named(wanted)} {_PLURAL.get(verb, verb) if len(wanted) > 1 else verb} {rest}"


def lasting(seconds: float) -> str:
    """Write a duration in the unit that a person would choose."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3 * 3600 else f"{seconds / 3600:.1f} h"
