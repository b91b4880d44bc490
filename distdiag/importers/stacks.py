"""Stacks that somebody took from outside: of py-spy, pystack and gdb, and of Python's faulthandler.

They tell where each thread stood at one moment. Whether it stands there for good is only told by a second look; a
rank whose main thread has moved in between is not taken to wait.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from distdiag import events
from distdiag.importers._contract import Imported
from distdiag.importers._text.dumps import FOLDED, MAIN, Dump, from_folded, from_json, from_text
from distdiag.importers._text.filenames import MAX_RANK, attempt_of, ranks_of
from distdiag.importers._text.lines import raw_lines
from distdiag.importers._text.normalise import clean
from distdiag.importers._text.records import RankRecords
from distdiag.importers._text.tales import Act
from distdiag.stackframes import UNKNOWN, activity_in, creation_in, operation_in, user_part

NAME = "stacks"
RUN = "imported"
MAX_JSON_BYTES = 64 << 20
"""A process of a thousand threads gives a few MiB."""
SECOND_NS = 1_000_000_000

_PY_SPY = re.compile(rb"^\s*Thread (?:0x)?[0-9A-Fa-f]+ \((?:idle|active)", re.MULTILINE)
_OTHERS = re.compile(
    rb"^(?:\s*Traceback for thread \d+ .*\(most recent call last\):|Thread \d+ \(Thread 0x[0-9a-f]+ \(LWP \d+\))",
    re.MULTILINE,
)
_JSON = re.compile(rb'\s*\[\s*\{[^\[]*"(?:thread_id|thread_name|owns_gil)"')
_FAULT = re.compile(rb"\s*(?:Fatal Python error: Aborted.*|Timeout \(.*\)!|(?:Current t|T)hread 0x[0-9a-f]+ .*)\n")
"""Watchdogs abort those who wait; with any other signal, the process tells its own end, as its output does."""


def recognises(path: Path, head: bytes) -> bool:
    """Return whether a file is a dump of stacks; a log with a dump somewhere in it is not."""
    del path
    if _JSON.match(head):
        return True
    if _FAULT.match(head) and b"(most recent call first):" in head:
        return True
    return bool(_PY_SPY.search(head) or _OTHERS.search(head)) or _is_folded(head)


def _is_folded(head: bytes) -> bool:
    first = head.split(b"\n", 1)[0]
    return len(first) < len(head) and FOLDED.fullmatch(clean(first)) is not None


def read(files: Sequence[Path]) -> Iterator[Imported]:
    """Yield the stacks by rank, one look after the other."""
    looks: dict[tuple[int | None, int], list[tuple[int, Dump]]] = {}
    notes: list[str] = []
    named = ranks_of(files)
    for file in sorted(files):
        try:
            dumps, moment = list(_dumps(file)), os.stat(file).st_mtime_ns
        except OSError as error:
            notes.append(f"{file.name} cannot be read: {error.strerror}")
            continue
        one_process = len({dump.pid for dump in dumps}) == 1
        for dump in dumps:
            rank = dump.rank if dump.rank is not None else named.get(file) if one_process else None
            known = rank if rank is not None and rank < MAX_RANK else None
            looks.setdefault((known, attempt_of(file)), []).append((moment, dump))
    unsigned = [look for (rank, _), taken in looks.items() if rank is None for look in taken]
    signed = {key: taken for key, taken in looks.items() if key[0] is not None}
    if unsigned:
        processes = ", ".join(str(dump.pid) for _, dump in unsigned[:4])
        notes.append(
            f"nothing tells the rank of {len(unsigned)} stacks (process {processes}): name files rank0.txt …, or write "
            "rank 0 … above each"
        )
    world = max((rank or 0 for rank, _ in signed), default=-1) + 1
    first_ns = min((moment for taken in signed.values() for moment, _ in taken), default=0)
    once = all(len(taken) == 1 for taken in signed.values())
    threads_wait = all(_waiting_threads(taken[-1][1]) > 1 for taken in signed.values())
    for (rank, attempt), taken in sorted(signed.items(), key=lambda item: (item[0][1], item[0][0] or 0)):
        # When each was taken says nothing of how long anything lasted.
        host = f"rank {rank}" if once else "unknown"
        header = _header(rank or 0, attempt, world, first_ns, taken[-1][1].pid, host)
        yield Imported(rank=rank, attempt=attempt, events=_records(header, world, taken, all_threads=threads_wait))
    if notes:
        yield Imported(rank=None, attempt=0, events=(), notes=tuple(notes))


def _dumps(file: Path) -> Iterator[Dump]:
    with file.open("rb") as opened:
        beginning = opened.read(1 << 16)
        if _JSON.match(beginning):
            yield from from_json(beginning + opened.read(MAX_JSON_BYTES))
            return
    if _is_folded(beginning):
        yield from from_folded(clean(line.data) for line in raw_lines(file))
        return
    yield from from_text(clean(line.data) for line in raw_lines(file))


def _header(rank: int, attempt: int, world: int, moment: int, pid: int, host: str) -> events.Header:
    return events.Header(
        schema=events.SCHEMA,
        run=RUN,
        attempt=attempt,
        rank=rank,
        world_size=world,
        host=host,
        pid=pid,
        source=NAME,
        wall_ns=moment,
        monotonic_ns=moment,
        stall_after_seconds=0.0,
        max_bytes=0,
    )


def _records(
    header: events.Header, world: int, taken: Sequence[tuple[int, Dump]], *, all_threads: bool
) -> list[events.Event]:
    log = RankRecords(header)
    log.records.append(
        events.Group(
            group=events.GROUP_UNKNOWN, ranks=list(range(world)), backend="unknown", time_ns=header.monotonic_ns
        )
    )
    moved = len({user_part(_main(dump)) for _, dump in taken}) > 1
    last_ns, last = taken[-1]
    if not moved:
        _stand(log, last, last_ns, all_threads=all_threads)
    for number, (moment, dump) in enumerate(taken):
        frames = _main(dump)
        log.records.append(
            events.Pulse(
                time_ns=moment + number,
                step=0,
                path=log.path(frames) if frames else None,
                activity=activity_in(frames),
            )
        )
        log.records.append(
            events.Stack(time_ns=moment + number, reason="request", source=dump.source, threads=dump.threads)
        )
    return log.log


def _stand(log: RankRecords, dump: Dump, moment: int, *, all_threads: bool) -> None:
    """Add the operations that a process stood in."""
    for stack in dump.threads:
        main = stack.frames == _main(dump)
        if not (main or all_threads):
            continue
        creation, op = creation_in(stack.frames), operation_in(stack.frames)
        if main and creation is not None:
            log.phase(creation, begin_ns=moment, end_ns=None, came=None, frames=stack.frames)
        elif op is not None:
            act = Act(op=op, group=events.GROUP_UNKNOWN, start_ns=moment, frames=tuple(stack.frames))
            act.thread = MAIN if main else stack.thread
            log.call(act)


def _main(dump: Dump) -> list[str]:
    """Return the stack of the main thread, else of the first."""
    named = next((stack for stack in dump.threads if stack.thread == MAIN), None)
    module = next((stack for stack in dump.threads if stack.frames and stack.frames[0].endswith(" <module>")), None)
    chosen = named or module or (dump.threads[0] if dump.threads else None)
    return chosen.frames if chosen is not None else []


def _waiting_threads(dump: Dump) -> int:
    return sum(operation_in(stack.frames) not in (None, UNKNOWN) for stack in dump.threads)


__all__ = ["NAME", "from_json", "read", "recognises"]
