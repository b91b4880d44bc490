"""Writes imported records as logs, beside the own logs that there are, into a directory that can be loaded.

Own records stay what they are. Of a rank that has an own log, other sources add only what such a log cannot hold:
how its process ended, stacks, what a backend says of itself. Of a rank without one, the first source that tells of
calls is taken at its word; the others add their facts.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from distdiag import events
from distdiag.importers._contract import OWN_BESIDES, UNHEARD, Imported
from distdiag.journal.segments import file_name, log_name, read_lines
from distdiag.run.frames import TIMES
from distdiag.run.held import MOST_HELD, HeldLog
from distdiag.run.launch import processes_of
from distdiag.run.logfiles import LogFile, discover, place_in

FACTS = (events.Path, events.Fault, events.Stack, events.Status, events.Memory)
"""Kinds that a second source may add to what a first one tells of a rank."""
SEEN = (*FACTS, events.Pulse)
"""The same where the first one is no log of our own: it gives no signs of life, and does not say where the rank is."""
ENDS = ("exit", "signal")
"""Faults of which an own log may know less than the launcher: a process that was killed wrote nothing of it."""
NUMBERS_APART = 1 << 32
"""Added to the numbers of each further source of a rank, so that its paths and calls are told from the others'."""
NUMBERS = ("path", "signature", "call", "number", "coalesced")

_encoder = msgspec.json.Encoder()


def merged(own: Sequence[Path], imported: Sequence[Imported], directory: Path) -> Path:
    """Write everything into ``directory`` and return it."""
    for file, name in _names(own):
        (directory / name).symlink_to(file.resolve())
    recorded = _recorded(directory) if own else {}
    by_log: dict[tuple[int | None, int], list[Imported]] = {}
    for each in imported:
        by_log.setdefault((each.rank, each.attempt), []).append(each)
    nameless = itertools.count()
    for (rank, attempt), sources in sorted(by_log.items(), key=lambda item: _order(*item[0])):
        if rank is None:
            for source in sources:
                _write(directory / file_name(f"unknown-{next(nameless)}", 0, 0), source.records())
        elif rank in recorded:
            _add(directory, recorded[rank], sources)
        else:
            _write(directory / file_name(log_name(rank), attempt, 0), _one_log(sources))
    return directory


def _names(own: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield own files with the names under which they can lie in one folder.

    What another folder has too is of a later attempt, in the order of the folders; what was renamed is named anew.
    """
    taken: dict[tuple[str, int], Path] = {}
    shifts: dict[Path, int] = {}
    for file in own:
        crash = file.name.endswith(OWN_BESIDES)
        stem, attempt, segment = place_in(
            file.with_name(file.name.removesuffix(OWN_BESIDES) + ".jsonl") if crash else file
        )
        attempt += shifts.get(file.parent, 0)
        if taken.get((stem, attempt), file.parent) != file.parent:
            shifts[file.parent] = 1 + max(number for _, number in taken)
            attempt += shifts[file.parent]
        taken[stem, attempt] = file.parent
        name = file_name(stem, attempt, segment)
        yield file, name.removesuffix(".jsonl") + OWN_BESIDES if crash else name


def held(imported: Sequence[Imported]) -> list[HeldLog] | None:
    """Return the logs that ``merged`` would write; None where it has to: for several sources of one rank, for such of
    no known rank, and where there are too many calls.
    """
    logs = [_held(each) for each in imported]
    distinct = {log.name for log in logs if log is not None}
    calls = sum(len(log.calls) for log in logs if log is not None)
    if len(distinct) < len(logs) or calls > MOST_HELD:
        return None
    return [log for log in logs if log is not None]


def _held(source: Imported) -> HeldLog | None:
    header = source.events[0]
    if source.rank is None or source.calls is None or source.dones is None or not isinstance(header, events.Header):
        return None
    return HeldLog(
        name=file_name(log_name(source.rank), source.attempt, 0),
        rank=source.rank,
        attempt=source.attempt,
        header=header,
        records=source.events,
        calls=source.calls,
        dones=source.dones,
    )


def _order(rank: int | None, attempt: int) -> tuple[bool, int, int]:
    return rank is None, rank or 0, attempt


def _recorded(directory: Path) -> dict[int, tuple[LogFile, events.Header]]:
    """Return by rank the last file of its newest own log, and the log's header."""
    newest: dict[int, tuple[LogFile, events.Header]] = {}
    for process in processes_of(discover(directory)):
        if process.rank is None or process.header is None:
            continue
        known = newest.get(process.rank)
        if known is None or known[1].wall_ns < process.header.wall_ns:
            newest[process.rank] = process.files[-1], process.header
    return newest


def _add(directory: Path, log: tuple[LogFile, events.Header], sources: Sequence[Imported]) -> None:
    """Write the facts of other sources as one more segment of an own log, on its clock."""
    last, header = log
    shift = header.monotonic_ns - header.wall_ns
    tells_its_end = any(b'"kind":"fault"' in line for line in read_lines(last.path))
    path = directory / file_name(last.stem, last.attempt, _segment_of(last.path) + 1)
    facts = [
        _shifted(event, shift)
        for position, source in enumerate(sources, start=1)
        for event in _apart(_unheard_of(source.events, tells_its_end), position)
    ]
    if facts:
        _write(path, facts)


def _segment_of(path: Path) -> int:
    number = path.name.removesuffix(".jsonl").rpartition(".")[2]
    return int(number) if number.isdigit() else 0


def _one_log(sources: Sequence[Imported]) -> Iterator[events.Event]:
    """Yield the records of several sources of one rank as one log."""
    headers = [event for source in sources for event in source.events if isinstance(event, events.Header)]
    if headers:
        yield msgspec.structs.replace(
            headers[0],
            source="+".join(dict.fromkeys(header.source for header in headers)),
            world_size=max((h.world_size for h in headers if h.world_size is not None), default=None),
            settings=_settings(headers),
        )
    teller = next((source for source in sources if source.tells_calls), sources[0])
    for position, source in enumerate(sources):
        kept = source.records() if source is teller else (e for e in source.events if isinstance(e, SEEN))
        yield from _apart((event for event in kept if not isinstance(event, events.Header)), position)


def _settings(headers: Sequence[events.Header]) -> dict[str, str]:
    """Return what several sources say of a rank: that one heard nothing of it means nothing where another did."""
    told = [(name, value) for header in headers for name, value in header.settings.items()]
    return {name: value for name, value in told if name != UNHEARD or all(name in h.settings for h in headers)}


def _unheard_of(records: Iterable[events.Event], tells_its_end: bool) -> Iterator[events.Event]:
    """Yield the facts that a log does not hold of itself.

    A log that tells of a fault needs no exceptions from elsewhere: it has them with their rank, line and time.
    """
    for event in _facts(records):
        if not (tells_its_end and isinstance(event, events.Fault) and event.fault not in ENDS):
            yield event


def _facts(records: Iterable[events.Event]) -> Iterator[events.Event]:
    return (event for event in records if isinstance(event, FACTS))


def _apart(records: Iterable[events.Event], position: int) -> Iterator[events.Event]:
    """Yield records with their own numbers moved out of the way of the sources before."""
    if not position:
        yield from records
        return
    for event in records:
        moved: dict[str, Any] = {
            name: value + position * NUMBERS_APART
            for name in NUMBERS
            if isinstance(value := getattr(event, name, None), int)
        }
        yield msgspec.structs.replace(event, **moved) if moved else event


def _shifted(event: events.Event, shift_ns: int) -> events.Event:
    moved: dict[str, Any] = {
        name: value + shift_ns for name in TIMES if (value := getattr(event, name, None)) is not None
    }
    return msgspec.structs.replace(event, **moved) if moved else event


def _write(path: Path, records: Iterable[events.Event]) -> None:
    path.write_bytes(_encoder.encode_lines(list(records)))
