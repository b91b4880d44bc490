"""Processes that a program started by itself: which of them are ranks, and which only started ranks."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from distdiag.run.launch import Process
from distdiag.run.logfiles import first_lines
from distdiag.settings import RANK_VARIABLE


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
