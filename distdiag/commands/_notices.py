"""Tells others of alarms, by a command or a webhook: one notice for each incident and one for its end."""

import json
import os
import subprocess
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

import click

from distdiag.live.alarms import Alarm, Change

PATIENCE_SECONDS = 20.0
"""How long a notice waits for the verdict on the logs."""
COMMAND_SECONDS = 60.0
WEBHOOK_SECONDS = 10.0
LAST_SECONDS = 15.0
"""How long the end of watching waits for notices that are under way."""
SCHEMA = "distdiag.alarm/1"


@dataclass(slots=True, kw_only=True)
class Notices:
    """Sends notices without making anybody wait; moments are seconds of the watcher's clock."""

    logs: str
    command: str | None = None
    webhook: str | None = None
    _waiting: dict[int, tuple[float, Alarm]] = field(default_factory=dict)
    _told: set[int] = field(default_factory=set)
    _threads: list[threading.Thread] = field(default_factory=list)

    def take(self, changes: list[Change], now: float, *, explaining: bool) -> None:
        """Learn what became of alarms, and send what is due."""
        for what, alarm in changes:
            if what == "raised":
                self._waiting[alarm.number] = now + PATIENCE_SECONDS, alarm
            elif what == "cleared":
                self._waiting.pop(alarm.number, None)
                if alarm.number in self._told:
                    self._send("cleared", alarm)
            elif alarm.number in self._waiting:
                self._waiting[alarm.number] = self._waiting[alarm.number][0], alarm
        for deadline, alarm in list(self._waiting.values()):
            if alarm.verdict is not None or now >= deadline or not explaining:
                self._tell(alarm)

    def finish(self) -> None:
        """Send what is left, and wait a while until it is sent."""
        for _, alarm in list(self._waiting.values()):
            self._tell(alarm)
        for thread in self._threads:
            thread.join(LAST_SECONDS)

    def _tell(self, alarm: Alarm) -> None:
        del self._waiting[alarm.number]
        self._told.add(alarm.number)
        self._send("raised", alarm)

    def _send(self, what: str, alarm: Alarm) -> None:
        body = {"schema": SCHEMA, "event": what, "logs": self.logs, "alarm": alarm.told()}
        acts = []
        if self.command:
            acts.append(lambda: _run(self.command or "", what, alarm, body))
        if self.webhook:
            acts.append(lambda: _post(self.webhook or "", body))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for act in acts:
            thread = threading.Thread(target=act, daemon=True)
            thread.start()
            self._threads.append(thread)


def facts_of(what: str, alarm: Alarm, logs: str) -> dict[str, str]:
    """Return the variables that a command finds in its environment."""
    verdict = alarm.verdict or {}
    culprits = verdict.get("culprits", [])
    return {
        "DISTDIAG_ALARM": str(alarm.kind),
        "DISTDIAG_ALARM_EVENT": what,
        "DISTDIAG_ALARM_NUMBER": str(alarm.number),
        "DISTDIAG_ALARM_SUMMARY": alarm.condition.summary,
        "DISTDIAG_ALARM_RANKS": ",".join(map(str, alarm.condition.ranks)),
        "DISTDIAG_ALARM_LOGS": logs,
        "DISTDIAG_ALARM_VERDICT": str(verdict.get("name", "")),
        "DISTDIAG_ALARM_CULPRITS": ",".join(map(str, culprits)),
    }


def _run(command: str, what: str, alarm: Alarm, body: dict[str, Any]) -> None:
    try:
        done = subprocess.run(
            command,
            shell=True,
            input=json.dumps(body).encode(),
            env={**os.environ, **facts_of(what, alarm, body["logs"])},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        click.echo(f"distdiag: the alarm command failed: {error}", err=True)
        return
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        click.echo(f"distdiag: the alarm command ended with code {done.returncode} {' '.join(last)}", err=True)


def _post(address: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        address, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS):
            pass
    except (OSError, ValueError, urllib.error.URLError) as error:
        click.echo(f"distdiag: the webhook did not take the alarm: {error}", err=True)
