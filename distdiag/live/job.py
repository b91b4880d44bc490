"""A running job: the state of all its ranks, put together from what their logs append."""

import socket
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

from distdiag import events
from distdiag.journal.segments import rank_of
from distdiag.launch_names import began_later, name_told, names_of_launch
from distdiag.live.groups import Groups, GroupState
from distdiag.live.learning import take
from distdiag.live.ranks import RankState
from distdiag.live.tailing import Appended, Writer

PULSES_MISSED_SECONDS = 3.0
"""A rank beats once a second and its log is looked at once a second: before this it is not silent."""
LEFT_SECONDS = 30.0
"""A log to which nothing came for so long before anybody looked is of a process that is no more, or stands."""
RATE_SECONDS = 30.0
"""Rates are those of the newest steps, not of the whole run."""
TOTALS = ("total_steps", "max_steps")
"""Facts of ``distdiag.step`` that tell how long the job is going to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How a job gets on; None where its logs do not tell."""

    step: int | None
    steps_per_second: float | None
    tokens_per_second: float | None
    remaining_seconds: float | None


class Job:
    """The newest launch in a directory, as far as its logs were read."""

    def __init__(self) -> None:
        self.now = 0.0
        """The moment that the state is of, by the clock of who watches."""
        self.began = 0.0
        """When the first rank of the launch was seen."""
        self.ranks: Mapping[int, RankState] = {}
        """The ranks of the newest launch, in order."""
        self._states: dict[Writer, RankState] = {}
        self._groups: dict[tuple[str, int], Groups] = {}
        self._newest: tuple[str, int] | None = None
        self._seen_alive: set[int] = set()
        self._here = socket.gethostname()

    def take(self, appended: Iterable[Appended], now: float, wall_ns: int | None = None) -> None:
        """Learn what was appended by the moment ``now``, which is ``wall_ns`` on the wall's clock: by default, now."""
        self.now = now
        wall_ns = time.time_ns() if wall_ns is None else wall_ns
        for writer, records, written_ns in appended:
            state = self._state_of(writer, records)
            if state is not None:
                for record in records:
                    take(state, record)
                age = 0.0 if written_ns is None else _age_seconds(state, written_ns, wall_ns)
                state.found_left = age > LEFT_SECONDS
                state.arrived = now - (age if state.found_left else 0.0)
        self._choose()

    @property
    def groups(self) -> list[GroupState]:
        """Return the groups of the newest launch."""
        return [group for groups in self._groups.values() for group in groups.all.values()]

    @property
    def world_size(self) -> int:
        """Return how many ranks the job has, or is known to have."""
        told = [state.header.world_size or 0 for state in self.ranks.values()]
        return max([*told, *(rank + 1 for rank in self.ranks)], default=0)

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the ranks without a log."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.ranks)

    @property
    def living(self) -> list[RankState]:
        """Return the ranks that have not told their end."""
        return [state for state in self.ranks.values() if state.alive]

    @property
    def ended(self) -> bool:
        """Return whether all ranks told their end."""
        return bool(self.ranks) and not self.living and not self.missing

    @property
    def left(self) -> bool:
        """Return whether the job was over when it was first looked at, though some ranks could not tell their end."""
        living = self.living
        return bool(living) and all(state.found_left for state in living)

    def writers(self) -> dict[int, Writer]:
        """Return who writes the log of each rank."""
        return {state.rank: writer for writer, state in self._states.items() if self.ranks.get(state.rank) is state}

    def silence(self, state: RankState) -> float:
        """Return for how many seconds nothing came of a rank; 0 where it is no more than the usual time."""
        silence = self.now - state.arrived
        return silence if silence > PULSES_MISSED_SECONDS else 0.0

    def still(self, state: RankState) -> float:
        """Return for how many seconds a rank has made no progress."""
        return max(state.last_ns - state.progress_ns, 0) / 1e9 + self.silence(state)

    def process_of(self, state: RankState) -> str | None:
        """Return ``gone``, ``stopped``, ``traced`` or ``there`` for a process of this host; None where nothing tells.

        One that is traced is held by a debugger, or while its stacks are taken.
        """
        if state.host != self._here:
            return None
        pid = state.header.pid
        try:
            process = psutil.Process(pid)
            status = process.status()
        except psutil.Error:
            # In a container of its own it never had this number here.
            return "gone" if pid in self._seen_alive else None
        if process.create_time() > state.header.wall_ns / 1e9:
            return "gone" if pid in self._seen_alive else None  # the number went to another process
        self._seen_alive.add(pid)
        if status == psutil.STATUS_ZOMBIE:
            return "gone"
        return {psutil.STATUS_STOPPED: "stopped", psutil.STATUS_TRACING_STOP: "traced"}.get(status, "there")

    def progress(self) -> Progress:
        """Return step and rates of the median rank over the newest steps."""
        steps = [state.step for state in self.ranks.values() if state.started]
        step = int(statistics.median_low(steps)) if steps else None
        rates = [rate for state in self.living if (rate := _rate(state)) is not None]
        rate = statistics.median(rates) if rates else None
        tokens = [tokens for state in self.living if (tokens := _tokens(state)) is not None]
        total = max((_total(state) for state in self.ranks.values()), default=0)
        left = (total - step) / rate if total and step is not None and rate else None
        return Progress(
            step=step,
            steps_per_second=rate,
            tokens_per_second=sum(tokens) if tokens else None,
            remaining_seconds=left if left is None else max(left, 0.0),
        )

    def _state_of(self, writer: Writer, records: list[events.Record]) -> RankState | None:
        state = self._states.get(writer)
        header = next((record for record in records if isinstance(record, events.Header)), None)
        if header is None:
            return state
        rank = header.rank if header.rank is not None else rank_of(writer.stem)
        if state is not None and state.header.pid == header.pid:
            return state
        if rank is None:
            return None
        launch = _launch_of(header)
        groups = self._groups.setdefault(launch, Groups())
        if not self._states:
            self.began = self.now
        state = self._states[writer] = RankState(rank, header, groups)
        return state

    def _choose(self) -> None:
        """Take the ranks of the newest launch, and forget the others."""
        if not self._states:
            return
        newest = max(self._not_superseded(), key=lambda header: header.wall_ns)
        if _launch_of(newest) != self._newest:
            self._newest = _launch_of(newest)
            self.began = self.now
        named = [(state.rank, state.header) for state in self._states.values() if name_told(state.header) is not None]
        names = names_of_launch(named, newest)
        kept: dict[int, RankState] = {}
        for writer, state in sorted(self._states.items()):
            rival = kept.get(state.rank)
            if not _belongs(state, newest, names):
                del self._states[writer]
            elif rival is None or began_later(state.header, rival.header):
                kept[state.rank] = state
        self.ranks = dict(sorted(kept.items()))
        launches = {_launch_of(state.header) for state in kept.values()}
        self._groups = {launch: groups for launch, groups in self._groups.items() if launch in launches}

    def _not_superseded(self) -> list[events.Header]:
        """Return for each rank and name of a launch the process that began last."""
        last: dict[tuple[int, str | None], events.Header] = {}
        for state in self._states.values():
            former = last.setdefault((state.rank, name_told(state.header)), state.header)
            if began_later(state.header, former):
                last[state.rank, name_told(state.header)] = state.header
        return list(last.values())


def _age_seconds(state: RankState, written_ns: int, wall_ns: int) -> float:
    """Return since when nothing was written: by the file or by the last record, whichever is newer.

    A file that is mapped keeps an old date while it is written, and a host's clock may be wrong.
    """
    return (wall_ns - max(written_ns, state.last_ns + state.offset_ns)) / 1e9


def _launch_of(header: events.Header) -> tuple[str, int]:
    """Return what tells launches apart: processes that made a name up are of one."""
    return name_told(header) or "", header.attempt


def _belongs(state: RankState, newest: events.Header, names: frozenset[str]) -> bool:
    """Return whether a process is of the launch whose last process began with ``newest``."""
    own = state.header
    if own.run not in names and name_told(own) is not None and name_told(newest) is not None:
        return False
    return own.attempt == newest.attempt or (
        own.attempt < newest.attempt and state.last_ns + state.offset_ns >= newest.wall_ns and state.alive
    )


def _rate(state: RankState) -> float | None:
    """Return a rank's steps per second."""
    if len(state.steps) < 2:
        return None
    newest = state.steps[-1]
    recent = [step for step in state.steps if newest.end_ns - step.end_ns <= RATE_SECONDS * 1e9]
    first = recent[0] if len(recent) > 1 else state.steps[-2]
    count, span = newest.step - first.step, newest.end_ns - first.end_ns
    if count <= 0:
        return None
    # A rank that stands still gets slower while one looks at it.
    overdue = max(state.last_ns - newest.end_ns - span / count, 0)
    return count / max((span + overdue) / 1e9, 1e-9)


def _tokens(state: RankState) -> float | None:
    if len(state.tokens) < 2:
        return None
    last = state.last_ns
    recent = [(moment, count) for moment, count in state.tokens if last - moment <= RATE_SECONDS * 1e9]
    if len(recent) < 2:
        return 0.0
    return sum(count for _, count in recent[1:]) / max((last - recent[0][0]) / 1e9, 1e-9)


def _total(state: RankState) -> int:
    known = (state.facts.get(name) for name in TOTALS)
    return max((value for value in known if isinstance(value, int)), default=0)
