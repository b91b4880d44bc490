"""Processes whose logs lie together: which are ranks, which are of attempts that came before, and which still run."""

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from distdiag.deferred import deferred
from distdiag.run.launch import Launch, Process
from distdiag.run.logfiles import first_lines
from distdiag.settings import RANK_VARIABLE

if TYPE_CHECKING:
    import psutil
else:
    psutil = deferred("psutil")

Members = Mapping[int, Process]
"""The processes of one attempt by rank."""
FRESH_NS = 10_000_000_000
"""Pulses come each second, shipped logs a second later, and clocks differ: a record so young is a sign of life."""
START_NS = 60_000_000_000
"""A process that began so long after its log did is another one with the same number."""


class _World(msgspec.Struct, tag="header", tag_field="kind"):
    """What a header tells of the world, whatever its version."""

    world_size: int | None = None


_world = msgspec.json.Decoder(_World)


def ranks_of(processes: Sequence[Process]) -> tuple[Process, ...]:
    """Return the processes that are ranks, or may be: those that a program started tell of one another."""
    return _named_by_exclusion(_without_launchers(processes))


def _without_launchers(processes: Sequence[Process]) -> list[Process]:
    """Return the processes without those that started ranks and were none themselves.

    A scheduler may have told such a process a number, which is that of its task. A rank that started what became
    another rank was started itself, or its launcher told it which rank it is.
    """
    headers = [process.header for process in processes if process.rank is not None and process.header is not None]
    launchers = {(header.host, header.started_by) for header in headers}
    return [
        process
        for process in processes
        if process.header is None
        or process.header.started_by is not None
        or process.header.rank_from == RANK_VARIABLE
        or (process.header.host, process.header.pid) not in launchers
    ]


def _named_by_exclusion(processes: Sequence[Process]) -> tuple[Process, ...]:
    """Give a process that never told its rank the only one that is left, where its launcher started a whole world."""
    launched: dict[tuple[str, int], list[Process]] = {}
    for process in processes:
        if process.header is not None and process.header.started_by is not None:
            launched.setdefault((process.header.host, process.header.started_by), []).append(process)
    named: dict[int, Process] = {}
    for siblings in launched.values():
        nameless = [process for process in siblings if process.rank is None]
        if len(nameless) != 1:
            continue
        missing = set(range(max(map(_world_size, siblings)))) - {process.rank for process in siblings}
        if len(missing) == 1 and nameless[0].header is not None:
            header = msgspec.structs.replace(nameless[0].header, rank=missing.pop())
            named[id(nameless[0])] = replace(nameless[0], header=header)
    return tuple(named.get(id(process), process) for process in processes)


def _world_size(process: Process) -> int:
    """Return the size of the world that a log speaks of near its beginning, 0 where it does not."""
    sizes = [0]
    for line in first_lines(process.files[0]):
        with contextlib.suppress(msgspec.DecodeError):
            sizes.append(_world.decode(line).world_size or 0)
    return max(sizes)


def earlier_of(processes: Sequence[Process], launch: Launch) -> tuple[Members, ...]:
    """Return the attempts of the same job before ``launch``, the oldest first.

    A launcher that starts a job anew may take another port, so that only the job's own name is the same. Ranks that
    several processes claim make it uncertain which attempt a log is of: then there are none.
    """
    if not launch.members or launch.doubled:
        return ()
    members = {_key(process) for process in launch.members.values()}
    began = min(process.start_ns for process in launch.members.values())
    former = [
        process
        for process in processes
        if _key(process) not in members
        and process.supported
        and process.rank is not None
        and 0 < process.start_ns < began
        and (process.run in launch.names or same_job(process.run, launch.run))
    ]
    return _attempts(sorted(former, key=lambda process: (process.start_ns, process.stem)))


def _attempts(ordered: Sequence[Process]) -> tuple[Members, ...]:
    """Part processes where a rank begins for the second time, or one of another number when all others had ended."""
    attempts: list[dict[int, Process]] = []
    for process in ordered:
        rank = process.rank or 0
        present = attempts[-1] if attempts else {}
        others = [each.attempt for each in present.values()]
        over = max((each.end_ns for each in present.values()), default=0) < process.start_ns
        if not present or rank in present or (over and process.attempt not in others):
            attempts.append({})
        attempts[-1][rank] = process
    return tuple(dict(sorted(attempt.items())) for attempt in attempts)


def same_job(one: str | None, other: str | None) -> bool:
    """Return whether two launches bear the name of one job: ``job@address``, the job left out where it has no name."""
    if one == other:
        return True
    names = {(name or "").partition("@")[0] if "@" in (name or "") else "" for name in (one, other)}
    return len(names) == 1 and names != {""}


def _key(process: Process) -> tuple[str, int]:
    return process.stem, process.attempt


def alive(members: Mapping[int, Process]) -> frozenset[int]:
    """Return the ranks whose processes have not ended; the only answer here that depends on when it is asked."""
    here, now_ns = socket.gethostname(), time.time_ns()
    return frozenset(rank for rank, process in members.items() if _is_alive(process, here, now_ns))


def _is_alive(process: Process, here: str, now_ns: int) -> bool:
    header = process.header
    if header is None:
        return False
    if header.host != here:
        return now_ns - process.end_ns < FRESH_NS
    try:
        found = psutil.Process(header.pid)
        ended = found.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return not ended and found.create_time() * 1e9 < header.wall_ns + START_NS
    except psutil.Error:
        return False
