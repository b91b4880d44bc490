"""The last thing known of each rank, for the report's table."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers.investigation.issued import called, group_name, in_group
from distdiag.analyzers.investigation.lives import LAUNCHER
from distdiag.analyzers.investigation.paths import location, short
from distdiag.analyzers.investigation.queues import is_queued
from distdiag.analyzers.investigation.sources import recorded, tells_steps, unheard
from distdiag.analyzers.investigation.whereabouts import BACKGROUND
from distdiag.findings import Position
from distdiag.run import Run

SECOND_NS = 1_000_000_000
_CALL = (
    *("rank", "call", "group", "members", "op", "p2p", "peer", "seq", "step", "phase", "path"),
    *("start_ns", "end_ns", "failed"),
)
"""What of a call tells where its rank is."""
_ENDED = {"interpreter": "exited", "os._exit": "left by os._exit", "uninstall": "stopped recording"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Act:
    """Something a rank was in, and since when."""

    since_ns: int
    doing: str
    frames: tuple[str, ...] | None = None
    phase: str | None = None
    waits: bool = False
    """It is in a call: nothing newer says better where."""


def positions(run: Run) -> tuple[Position, ...]:
    """Return where each rank with a log was last, in the order of ranks; nothing where no rank is named at all."""
    if unheard(run) >= set(run.ranks):
        return ()
    places = _Places(run)
    return tuple(places.of(rank) for rank in run.ranks)


def newest_ns(run: Run) -> int:
    """Return the moment of the newest record of all ranks."""
    return max(newest_by_rank(run).values(), default=0)


class _Places:
    """Looks up the newest records of each rank, taken from the frames once for all ranks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._newest_ns = newest_ns(run)
        self._names: dict[tuple[str, tuple[int, ...] | None], str] = {}
        known = run.calls["end_ns"].notna().to_numpy()
        self._last_ended = _last_calls(run.calls, known & ~run.calls["failed"].to_numpy())
        self._last_call = _last_calls(run.calls, np.ones(len(run.calls), dtype=bool))
        # What stands behind the first unfinished operation of a device has not begun.
        self._queues = _first_calls(run.calls, ~known & is_queued(run))
        self._last_open = _last_calls(run.calls, ~known) | self._queues
        self._pulse = _last(run.pulses, "time_ns")
        foreground = run.phases[run.phases["phase"] != BACKGROUND]
        self._phase = _last(_open(foreground, ["rank", "number"]), "time_ns")
        self._batch = _last(_open(run.batches, ["rank", "loader", "batch"]), "time_ns")
        self._exit = _last(run.faults[run.faults["fault"] == "exit"], "time_ns")
        uncaught = run.faults[(run.faults["fault"] != "exit") & (run.faults["where"] == "uncaught")]
        self._uncaught = _last(uncaught, "time_ns")
        self._crash = {int(row["rank"]): str(row["kind"]) for row in run.crashes.to_dict("records")}
        self._step = _newest_steps(run) if tells_steps(run) else {}
        self._recorded = recorded(run)

    def of(self, rank: int) -> Position:
        """Return the position of one rank."""
        act = self._act(rank)
        pulse = self._pulse.get(rank)
        frames = act.frames
        newer = pulse is not None and (frames is None or int(pulse["time_ns"]) >= act.since_ns)
        if pulse is not None and newer and not act.waits and _known(pulse["path"]):
            frames = self._frames(pulse)
        phase = act.phase if act.phase is not None else str(pulse["phase"]) if pulse is not None else None
        last = self._last_ended.get(rank)
        return Position(
            rank=rank,
            step=self._step.get(rank),
            phase=phase or None,
            where=frames[-1] if frames else None,
            doing=act.doing,
            since_seconds=round((self._newest_ns - act.since_ns) / SECOND_NS, 3) if act.since_ns else None,
            last=None if last is None else self._completed(last),
        )

    def _act(self, rank: int) -> _Act:
        """Return what the rank was in: its end, else the innermost thing that it began and did not end."""
        ended = self._ended(rank)
        if ended is not None:
            return ended
        acts = [act for act in (self._in_call(rank), self._in_batch(rank), self._in_phase(rank)) if act is not None]
        if acts:
            return max(acts, key=lambda act: act.since_ns)
        pulse = self._pulse.get(rank)
        activity = pulse["activity"] if pulse is not None else None
        last = self._last_call.get(rank)
        since = 0 if last is None else int(last["end_ns"] if _known(last["end_ns"]) else last["start_ns"])
        untold = pulse is None and last is None and rank not in self._recorded  # foreign files need not name all
        doing = str(activity).replace("-", " ") if _known(activity) else "not told" if untold else "running"
        return _Act(since_ns=since, doing=doing, frames=None if last is None else self._frames(last))

    def _ended(self, rank: int) -> _Act | None:
        record, raised, crash = self._exit.get(rank), self._uncaught.get(rank), self._crash.get(rank)
        last = self._last_call.get(rank)
        if raised is not None:
            kind = str(raised["type"]).rpartition(".")[2]
            if last is not None and last["failed"]:
                return self._in(last, f"{self._called(last)} failed ({kind})")
            frames = raised["frames"] or self._frames(raised)
            return _Act(since_ns=int(raised["time_ns"]), doing=f"raised {kind}", frames=frames, waits=True)
        if record is not None:
            code = f" with code {int(record['code'])}" if _known(record["code"]) and int(record["code"]) else ""
            doing = _ENDED.get(str(record["where"]), "exited") + code
            if record["where"] == LAUNCHER and last is not None and last["failed"]:
                return self._in(last, f"{self._called(last)} failed")
            frames = None if last is None else self._frames(last)
            return _Act(since_ns=int(record["time_ns"]), doing=doing, frames=frames)
        if last is not None and last["failed"] and rank not in self._recorded:
            return self._in(last, f"{self._called(last)} failed")
        if crash is not None and crash.startswith("SIG") and crash != "SIGTERM":
            doing = f"died of {crash}"
            return _Act(since_ns=0, doing=doing) if last is None else self._in(last, doing)
        return None

    def _in_call(self, rank: int) -> _Act | None:
        row = self._last_open.get(rank)
        if row is None or not self._is_in(rank, row):
            return None
        return self._in(row, self._called(row))

    def _in(self, call: Mapping[Any, Any], doing: str) -> _Act:
        frames = self._frames(call)
        return _Act(since_ns=int(call["start_ns"]), doing=doing, frames=frames, phase=str(call["phase"]), waits=True)

    def _is_in(self, rank: int, row: Mapping[Any, Any]) -> bool:
        """Return whether a rank is in a call without an end: some are never waited for, or end unseen.

        Waits inside C++ are not seen as waits; then the main thread stays at the lines that issued the call.
        """
        pulse = self._pulse.get(rank)
        if pulse is None and rank in self._queues:
            return True  # where the host is nobody tells; the device is there
        newer = pulse is not None and int(pulse["time_ns"]) > int(row["start_ns"])
        if newer and pulse is not None and int(row["call"]) in pulse["waiting"]:
            return True
        elsewhere = newer and pulse is not None and _known(pulse["path"]) and int(pulse["path"]) != int(row["path"])
        return int(row["call"]) == int(self._last_call[rank]["call"]) and not elsewhere

    def _in_batch(self, rank: int) -> _Act | None:
        row = self._batch.get(rank)
        if row is None:
            return None
        return _Act(since_ns=int(row["time_ns"]), doing="data loading", frames=self._frames(row), phase="data")

    def _in_phase(self, rank: int) -> _Act | None:
        row = self._phase.get(rank)
        if row is None:
            return None
        phase = str(row["phase"])
        return _Act(since_ns=int(row["time_ns"]), doing=f"in {phase}", frames=self._frames(row), phase=phase)

    def _frames(self, row: Mapping[Any, Any]) -> tuple[str, ...]:
        return self._run.paths.get(int(row["path"]), ()) if _known(row["path"]) else ()

    def _called(self, row: Mapping[Any, Any]) -> str:
        key = (str(row["group"]), row["members"])
        if key not in self._names:
            self._names[key] = group_name(self._run, *key)
        peer = f" with rank {int(row['peer'])}" if row["p2p"] and _known(row["peer"]) else ""
        return f"{called(str(row['op']), int(row['seq']))}{peer} of {in_group(self._names[key])}"

    def _completed(self, row: Mapping[Any, Any]) -> str:
        frames = self._run.paths.get(int(row["path"]), ())
        site = f", {short(location(frames[-1]))}" if frames else ""
        return called(str(row["op"]), int(row["seq"])) + site


def _last(frame: pd.DataFrame, by: str | None = None) -> dict[int, dict[Any, Any]]:
    """Return per rank the row with the greatest value, or the last row; calls are ordered as they are."""
    if frame.empty:
        return {}
    ordered = frame if by is None else frame.sort_values(["rank", by], kind="stable")
    newest = ordered.drop_duplicates("rank", keep="last")
    return {int(row["rank"]): row for row in newest.to_dict("records")}


def _last_calls(calls: pd.DataFrame, mask: npt.NDArray[np.bool_]) -> dict[int, dict[Any, Any]]:
    """Return the last of some calls of each rank; they are ordered by rank."""
    rows = np.flatnonzero(mask)
    ranks = calls["rank"].to_numpy()[rows]
    return _last(calls[list(_CALL)].iloc[rows[np.append(ranks[1:] != ranks[:-1], True)[: len(rows)]]])


def _first_calls(calls: pd.DataFrame, mask: npt.NDArray[np.bool_]) -> dict[int, dict[Any, Any]]:
    """Return the first of some calls of each rank."""
    rows = np.flatnonzero(mask)
    ranks = calls["rank"].to_numpy()[rows]
    return _last(calls[list(_CALL)].iloc[rows[np.insert(ranks[1:] != ranks[:-1], 0, True)[: len(rows)]]])


def _open(records: pd.DataFrame, identity: list[str]) -> pd.DataFrame:
    """Return the begin records without an end."""
    ended = records[records["edge"] == "end"].set_index(identity).index
    begun = records[records["edge"] == "begin"]
    return begun[~begun.set_index(identity).index.isin(ended)]


_newest: weakref.WeakKeyDictionary[Run, dict[int, int]] = weakref.WeakKeyDictionary()


def newest_by_rank(run: Run) -> Mapping[int, int]:
    """Return the moment of the newest record of each rank."""
    known = _newest.get(run)
    if known is None:
        known = _newest[run] = _newest_by_rank(run)
    return known


def _newest_by_rank(run: Run) -> dict[int, int]:
    newest: dict[int, int] = {}
    frames = (run.calls, run.steps, run.phases, run.batches, run.memory, run.faults, run.stacks, run.pulses, run.gc)
    for frame in frames:
        for name in ("time_ns", "start_ns", "end_ns"):
            if name not in frame or frame.empty:
                continue
            latest = frame.groupby("rank")[name].max().dropna()
            for rank, moment in zip(latest.index.tolist(), latest.tolist(), strict=True):
                newest[rank] = max(newest.get(rank, 0), int(moment))
    return newest


def _newest_steps(run: Run) -> dict[int, int]:
    """Return per rank the step of its newest record that names one."""
    calls = _last_calls(run.calls, np.ones(len(run.calls), dtype=bool))
    newest = {rank: (int(row["start_ns"]), int(row["step"])) for rank, row in calls.items()}
    named = [(run.pulses, "time_ns"), (run.batches, "time_ns"), (run.phases, "time_ns")]
    for frame, moment in [*named, (run.faults, "time_ns"), (run.steps, "end_ns")]:
        for rank, row in _last(frame[frame[moment].notna()], moment).items():
            newest[rank] = max(newest.get(rank, (0, 0)), (int(row[moment]), int(row["step"])))
    return {rank: step for rank, (_, step) in newest.items()}


def _known(value: Any) -> bool:
    return value is not None and not pd.isna(value)
