"""A watched job as lines of JSON: one for each interval, and one for whatever becomes of an alarm."""

import json
from typing import Any

import msgspec

from distdiag.live.alarms import Alarm, Change
from distdiag.live.snapshot import Snapshot

SCHEMA = "distdiag.watch/1"
STATE = "state"


def state_line(snapshot: Snapshot) -> str:
    """Return the state of a job as one line."""
    told: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(snapshot, alarms=()), str_keys=True)
    for row in told["ranks"]:
        for internal in ("strip", "trouble", "spent"):
            del row[internal]
    moment = told.pop("wall_ns") / 1e9
    alarms = [alarm.told() for alarm in snapshot.alarms]
    return _line({"schema": SCHEMA, "event": STATE, "time": moment, **told, "alarms": alarms})


def change_line(change: Change, moment: float) -> str:
    """Return what became of an alarm as one line."""
    return _line({"schema": SCHEMA, "event": change.what, "time": moment, "alarm": change.alarm.told()})


def alarm_line(alarm: Alarm, moment: float) -> str:
    """Return the alarm that watching ends with as one line."""
    return _line({"schema": SCHEMA, "event": "exit", "time": moment, "alarm": alarm.told()})


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
