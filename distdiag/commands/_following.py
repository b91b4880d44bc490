"""The loops of ``distdiag watch``: on a terminal, into a pipe, or once."""

import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from distdiag.commands._notices import Notices
from distdiag.errors import DistdiagError
from distdiag.live.alarms import Alarm, Alarms, Change
from distdiag.live.fleet import Fleet
from distdiag.live.scraped import Scraped
from distdiag.live.snapshot import RankDetail, Snapshot, detail_of, snapshot_of
from distdiag.live.watch import Watch
from distdiag.reporters import watching
from distdiag.reporters._lines import size_of, write_lines
from distdiag.reporters.live import Choice, plain_view, screen, status

BETWEEN_LOOKS_SECONDS = 1.2
"""Of ``--once``: what has to be seen twice is seen then."""
TEXT_EVERY_SECONDS = 10.0
"""Lines of text for a log; whatever becomes of an alarm is written at once."""
SETTLE_SECONDS = 30.0
"""A job of which all ranks ended is over when no new attempt begins within this time, if any of them failed."""
EXPLAIN_SECONDS = 60.0
"""How long the last line waits for the verdict on the logs."""
ALARMED = 1
KEY_SECONDS = 1.0


class Source(Protocol):
    """What is watched: the logs of all ranks, or what the agents of their hosts say."""

    logs: Path
    alarms: Alarms

    @property
    def present(self) -> bool:
        """Return whether the directory is there."""

    @property
    def ended(self) -> bool:
        """Return whether all ranks told their end."""

    @property
    def explaining(self) -> bool:
        """Return whether a verdict may still come."""

    def look(self, now: float | None = None) -> list[Change]:
        """Read what is new and return what became of alarms."""

    def close(self) -> None:
        """End what runs in the background."""


class Exporter(Protocol):
    """Who hands the newest snapshot on to others."""

    snapshot: Snapshot | None

    def close(self) -> None:
        """Hand on no more."""


@dataclass(slots=True, kw_only=True)
class Session:
    """A watch, who is told of its alarms, and what ends it."""

    watch: Source
    snapshot: Callable[[], Snapshot]
    detail: Callable[[int], RankDetail | None]
    notices: Notices
    interval_seconds: float = 1.0
    exit_on: Collection[str] = ()
    """Kinds of alarms that end it with code 1."""
    exporters: list[Exporter] = field(default_factory=list)
    _fatal: int | None = None
    _fatal_since: float = 0.0
    _over_since: float | None = None

    def look(self) -> tuple[Snapshot, list[Change]]:
        """Look at the job, tell of alarms and return what is to be shown."""
        now = time.monotonic()
        changes = self.watch.look(now)
        self.notices.take(changes, now, explaining=self.watch.explaining)
        for what, alarm in changes:
            if self._fatal is None and what in ("raised", "changed") and alarm.kind in self.exit_on:
                self._fatal, self._fatal_since = alarm.number, now
        snapshot = self.snapshot()
        for exporter in self.exporters:
            exporter.snapshot = snapshot
        return snapshot, changes

    def ends_with(self) -> Alarm | None:
        """Return the alarm that ends the watch, once its verdict is there or is not to be had."""
        if self._fatal is None:
            return None
        alarm = next((a for a in self.watch.alarms.active.values() if a.number == self._fatal), None)
        if alarm is None:  # it was cleared while its verdict was being looked for
            self._fatal = None
            return None
        patient = time.monotonic() - self._fatal_since < EXPLAIN_SECONDS
        return None if alarm.verdict is None and self.watch.explaining and patient else alarm

    def close(self) -> None:
        """End what runs in the background, and send the notices that are left."""
        self.watch.close()
        self.notices.finish()
        for exporter in self.exporters:
            exporter.close()

    def is_over(self) -> bool:
        """Return whether the job has ended for good."""
        if self._fatal is not None or not self.watch.ended:
            self._over_since = None
            return False
        if not self.watch.alarms.active:
            return not self.watch.alarms.awaits_confirmation
        self._over_since = self._over_since or time.monotonic()
        return time.monotonic() - self._over_since > SETTLE_SECONDS


def of_logs(logs: Path, notices: Notices, *, explain: bool) -> Session:
    """Return a session that reads the logs of all ranks."""
    watch = Watch(logs, explain=explain)
    return Session(
        watch=watch,
        snapshot=lambda: snapshot_of(watch),
        detail=lambda rank: detail_of(watch.job, rank),
        notices=notices,
    )


def of_agents(logs: Path, notices: Notices, *, explain: bool) -> Session:
    """Return a session that reads what the agents of all hosts say."""
    fleet = Fleet(logs, explain=explain)
    return Session(watch=fleet, snapshot=fleet.snapshot, detail=lambda rank: None, notices=notices)


def of_prometheus(address: str, matchers: str, notices: Notices) -> Session:
    """Return a session that asks a Prometheus server."""
    scraped = Scraped(address, matchers)
    return Session(watch=scraped, snapshot=scraped.snapshot, detail=lambda rank: None, notices=notices)


def once(session: Session, form: str) -> int:
    """Show the job as it is now; 1 if there is an alarm."""
    session.look()
    if not session.watch.present:
        raise DistdiagError(
            f"no such directory: {session.watch.logs}", "pass the directory given to distdiag.install()"
        )
    time.sleep(BETWEEN_LOOKS_SECONDS)
    snapshot, _ = session.look()
    deadline = time.monotonic() + EXPLAIN_SECONDS
    while snapshot.alarms and session.watch.explaining and time.monotonic() < deadline:
        time.sleep(session.interval_seconds)
        snapshot, _ = session.look()
    if form == "json":
        sys.stdout.write(watching.state_line(snapshot))
    else:
        write_lines(plain_view(snapshot, size_of(sys.stdout)[0]), sys.stdout)
    return ALARMED if snapshot.alarms else 0


def stream(session: Session, form: str) -> int:
    """Write what happens until the job or the watch ends; 1 if an alarm ends it."""
    shown = 0.0
    while True:
        began = time.monotonic()
        snapshot, changes = session.look()
        moment = snapshot.wall_ns / 1e9
        if form == "json":
            sys.stdout.writelines(watching.change_line(change, moment) for change in changes)
            sys.stdout.write(watching.state_line(snapshot))
        else:
            sys.stdout.writelines(_told(change) for change in changes)
            if began - shown >= TEXT_EVERY_SECONDS:
                shown = began
                sys.stdout.write(status(snapshot) + "\n")
        last = session.ends_with()
        if last is not None and form == "json":
            sys.stdout.write(watching.alarm_line(last, moment))
        sys.stdout.flush()
        if last is not None:
            return ALARMED
        if session.is_over():
            return ALARMED if any(alarm.kind in session.exit_on for alarm in snapshot.alarms) else 0
        time.sleep(max(session.interval_seconds - (time.monotonic() - began), 0.0))


def interact(session: Session) -> int:
    """Show the job on the terminal until somebody leaves, or an alarm ends the watch."""
    from distdiag.commands._screen import (
        Screen,  # rich: only a terminal needs it
        after,
    )

    choice: Choice | None = Choice()
    last: Alarm | None = None
    with Screen() as terminal:
        snapshot, _ = session.look()
        due = time.monotonic() + session.interval_seconds
        while choice is not None and last is None:
            detail = session.detail(choice.opened) if choice.opened is not None else None
            terminal.draw(screen(snapshot, choice, *terminal.size, detail))
            for key in terminal.keys(min(due - time.monotonic(), KEY_SECONDS)):
                choice = after(choice, key, snapshot) if choice is not None else None
            if time.monotonic() >= due:
                newest, _ = session.look()
                due = max(due + session.interval_seconds, time.monotonic())
                snapshot = snapshot if choice is not None and choice.paused else newest
                last = session.ends_with()
    if last is not None:
        sys.stdout.write(_told(Change("exit", last)))
        return ALARMED
    return 0


def _told(change: Change) -> str:
    what, alarm = change
    clock = time.strftime("%H:%M:%S")
    if what == "cleared":
        return f"{clock}  alarm {alarm.number} is over: {alarm.kind}\n"
    text = f"{clock}  ALARM {alarm.number} {alarm.kind}: {alarm.condition.summary}\n"
    if alarm.verdict:
        text += f"          verdict {alarm.verdict['name']}: {alarm.verdict['summary']}\n"
    return text
