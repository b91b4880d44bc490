"""How each rank's life went as far as its log tells: the failure it did not recover from, and how it ended."""

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers.investigation.rows import by_rank, records, text, whole
from distdiag.analyzers.investigation.sources import recorded
from distdiag.events import STUCK_WATCHDOG
from distdiag.run import Run

SECOND_NS = 1_000_000_000
TORN_DOWN = "SIGTERM"
KILL = "SIGKILL"
LAUNCHER = "launcher"
"""Where of an exit that the process did not record itself."""
NO_SPACE = "no-space"
"""Why a record is lost whose disk was full."""
FROZEN = "frozen"
FATAL_SIGNALS = re.compile(r"SIG(?!TERM)[A-Z0-9]+")

TIMEOUT = re.compile(r"timed out|time-out|timeout|wait timeout|clients joined", re.IGNORECASE)
"""What a wait says that gave up; nobody fails of it who had no reason to wait."""
CONNECTION = re.compile(
    r"connection (?:was )?(?:reset|closed|refused|abort(?:ed)?)\b|closed by (?:remote )?peer|broken pipe"
    r"|(?:read|write) error|remote process|recv(?:value)? failed|failed to recv|pair closure"
    r"|communicator (?:was )?aborted|socket",
    re.IGNORECASE,
)
"""What a wait says whose other side went away."""
OWN_FAULT = re.compile(r"failed to listen|EADDRINUSE|address already in use", re.IGNORECASE)
"""What a rank says of a socket that nobody else has a part in."""
GROUP_PHASES = ("init_process_group", "new_group", "split_group", "TCPStore")
NEVER_NS = 2**63 - 1
_EVENT_TIMES = ("time_ns", "start_ns", "end_ns")


class End(enum.StrEnum):
    """How a process ended, as far as it could still say."""

    ORDERLY = "orderly"
    HARD_EXIT = "os._exit"
    ABORTED = "aborted"
    TORN_DOWN = "torn down"
    KILLED = "killed"
    """By a signal that its launcher saw."""
    FAILED = "failed"
    """With an exit code that its launcher saw."""
    RUNNING = "running"
    """Not at all: its process was there when its log was read."""
    SILENT = "silent"
    """Without a word: killed, or on a host that cannot be asked."""
    UNTOLD = "untold"
    """Its log is none of ours and would not tell, or its disk was full then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What the log of one rank says of its end."""

    rank: int
    end: End
    last_ns: int
    """Its last record."""
    first_ns: int
    end_ns: int
    """When it ended, or its last record."""
    code: int | None = None
    signal: str | None = None
    crash_frames: tuple[str, ...] = ()
    frozen: bool = False
    frozen_frames: tuple[str, ...] = ()
    """The newest stack of its main thread that was written while nothing of it could run, outermost first."""
    failed_ns: int | None = None
    """When the first call, or making of a group, failed after which no call succeeded any more."""
    failure: str | None = None
    """What it said, where that is known."""
    watched_ns: int = NEVER_NS
    """Up to when its operations were watched: what had not ended by then, had not."""

    @property
    def in_trouble(self) -> bool:
        """Return whether something is to be explained."""
        return self.end not in (End.ORDERLY, End.UNTOLD, End.RUNNING) or self.failed_ns is not None


def lives_of(run: Run) -> Mapping[int, Life]:
    """Return the life of each rank that has a log."""
    firsts, lasts = _bounds(run)
    failures = _unrecovered(run.calls, run.phases)
    own, held_up, beginning = recorded(run), _held_up(run.faults), min(firsts.values(), default=0)
    watched = _watched_by_others(run)
    full = by_rank(run.dropped[run.dropped["reason"] == NO_SPACE].groupby("rank")["time_ns"].max())
    exits = {int(row.rank): row for row in records(run.faults[run.faults["fault"] == "exit"])}
    dumped: dict[int, list[Any]] = {}
    for dump in records(run.crashes):
        dumped.setdefault(int(dump.rank), []).append(dump)
    lives = {}
    for rank in run.ranks:
        last_ns = lasts.get(rank, beginning)
        failed_ns, failure = failures.get(rank, (None, None))
        crashes = dumped.get(rank, [])
        fatal = [dump for dump in crashes if FATAL_SIGNALS.fullmatch(dump.kind)]
        kinds = {dump.kind for dump in crashes}
        exit_record = exits.get(rank)
        end, code = _end(exit_record, kinds, fatal_signal=len(fatal) > 0, recorded=rank in own)
        if end is End.SILENT and rank in run.alive:
            end = End.RUNNING
        elif end is End.SILENT and full.get(rank, -1) >= last_ns:
            end = End.UNTOLD
        lives[rank] = Life(
            rank=rank,
            end=end,
            first_ns=firsts.get(rank, beginning),
            last_ns=last_ns,
            end_ns=int(exit_record.time_ns) if exit_record is not None else last_ns,
            code=code,
            signal=_signal(fatal, kinds, exit_record),
            crash_frames=tuple(fatal[0].frames) if fatal else (),
            frozen=FROZEN in kinds or rank in held_up,
            frozen_frames=next((tuple(dump.frames) for dump in reversed(crashes) if dump.kind == FROZEN), ()),
            failed_ns=failed_ns,
            failure=failure,
            watched_ns=last_ns if rank in own else watched.get(rank, NEVER_NS),
        )
    return lives


def _watched_by_others(run: Run) -> dict[int, int]:
    """Return when the backends of ranks spoke last, where that was after all that is known of their calls."""
    if run.statuses.empty:
        return {}
    calls = run.calls
    newest = by_rank(calls["end_ns"].fillna(calls["start_ns"]).groupby(calls["rank"]).max())
    spoke = by_rank(run.statuses.groupby("rank")["time_ns"].max())
    return {rank: int(moment) for rank, moment in spoke.items() if moment > newest.get(rank, NEVER_NS)}


def _end(exit_record: Any, kinds: set[str], *, fatal_signal: bool, recorded: bool) -> tuple[End, int | None]:
    if exit_record is not None:
        code = whole(exit_record.code)
        if exit_record.where == LAUNCHER:
            return _seen_by_launcher(text(exit_record.type), code), code
        return End.HARD_EXIT if exit_record.where == "os._exit" else End.ORDERLY, code
    if fatal_signal:
        return End.ABORTED, None
    if TORN_DOWN in kinds:
        return End.TORN_DOWN, None
    return (End.SILENT if recorded else End.UNTOLD), None


def _seen_by_launcher(signal: str | None, code: int | None) -> End:
    if signal == TORN_DOWN:
        return End.TORN_DOWN
    if code is not None and code < 0:
        return End.KILLED if signal == KILL else End.ABORTED
    return End.FAILED if code else End.ORDERLY


def _signal(fatal: Sequence[Any], kinds: set[str], exit_record: Any) -> str | None:
    """Return the signal that ended a process."""
    if fatal:
        return str(fatal[0].kind)
    named = text(exit_record.type) if exit_record is not None else None
    return named or (TORN_DOWN if TORN_DOWN in kinds else None)


def _held_up(faults: pd.DataFrame) -> frozenset[int]:
    """Return the ranks whose backend says that its own thread could not run."""
    return frozenset(int(rank) for rank in faults[faults["type"] == STUCK_WATCHDOG]["rank"])


def _bounds(run: Run) -> tuple[dict[int, int], dict[int, int]]:
    """Return the first and the last moment that each rank recorded anything."""
    firsts: dict[int, int] = {}
    lasts: dict[int, int] = {}
    bulk = (run.calls, run.steps, run.phases, run.batches, run.memory, run.faults)
    for frame in (*bulk, run.stacks, run.pulses, run.groups, run.statuses):
        for column in _EVENT_TIMES:
            if column not in frame or frame.empty:
                continue
            for rank, (first, last) in _extremes(frame, column).items():
                firsts[rank] = min(firsts.get(rank, first), first)
                lasts[rank] = max(lasts.get(rank, last), last)
    return firsts, lasts


def _extremes(frame: pd.DataFrame, column: str) -> dict[int, tuple[int, int]]:
    """Return the smallest and the greatest value of a column by rank."""
    known = frame[column].notna().to_numpy()
    if not known.any():
        return {}
    ranks, values = frame["rank"].to_numpy()[known], frame[column].to_numpy(dtype=np.int64, na_value=0)[known]
    order = np.argsort(ranks, kind="stable")
    distinct, starts = np.unique(ranks[order], return_index=True)
    smallest = np.minimum.reduceat(values[order], starts)
    greatest = np.maximum.reduceat(values[order], starts)
    return dict(zip(distinct.tolist(), zip(smallest.tolist(), greatest.tolist(), strict=True), strict=True))


def _unrecovered(calls: pd.DataFrame, phases: pd.DataFrame) -> dict[int, tuple[int, str | None]]:
    """Return per rank the first failure after which it issued no call that succeeded, and what it said."""
    columns = ["rank", "end_ns", "error"]
    failed = calls[calls["failed"]]
    failed = failed.assign(end_ns=failed["end_ns"].fillna(failed["start_ns"]).astype("int64"))
    creating = phases[phases["phase"].isin(GROUP_PHASES) & (phases["edge"] == "end") & phases["failed"]]
    creating = creating.assign(end_ns=creating["time_ns"], error=None)
    both = pd.concat([frame[columns] for frame in (failed, creating) if len(frame)] or [failed[columns]])
    if both.empty:
        return {}
    well = calls.loc[~calls["failed"] & calls["end_ns"].notna(), ["rank", "start_ns"]]
    last_well = by_rank(well.groupby("rank")["start_ns"].max())
    first: dict[int, tuple[int, str | None]] = {}
    for rank, end_ns, error in zip(both["rank"].tolist(), both["end_ns"].tolist(), both["error"].tolist(), strict=True):
        if end_ns > last_well.get(rank, 0) and (rank not in first or end_ns < first[rank][0]):
            first[rank] = end_ns, text(error)
    return first


def before_failure(calls: pd.DataFrame, lives: Mapping[int, Life]) -> npt.NDArray[np.bool_]:
    """Return which calls were issued before their rank's unrecovered failure; later ones are its consequences."""
    if all(life.failed_ns is None for life in lives.values()):
        return np.ones(len(calls), dtype=bool)
    ranks, positions = np.unique(calls["rank"].to_numpy(), return_inverse=True)
    cuts = [lives[rank].failed_ns for rank in ranks.tolist()]
    limits = np.array([NEVER_NS if cut is None else cut for cut in cuts], dtype=np.int64)
    return np.asarray(calls["start_ns"].to_numpy() <= limits[positions]) if len(ranks) else np.zeros(0, dtype=bool)
