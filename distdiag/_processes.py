"""Whose log each file is: decoded records, and the choice of the launch that is analysed."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from distdiag import events
from distdiag._logfiles import LogFile

_KNOWN_KINDS = frozenset(events.kind_of(event) for event in events.EVENTS)
_BULK = (events.Call, events.Done)


class _Loose(msgspec.Struct):
    """What can be read of a record that does not fit the schema."""

    kind: str = ""
    schema: str | None = None


_loose = msgspec.json.Decoder(_Loose)


@dataclass(slots=True, kw_only=True)
class FileContent:
    """The records of one file that are not calls or their ends, and what of it could not be understood."""

    log: LogFile
    records: list[events.Record] = field(default_factory=list)
    undecodable: int = 0
    """Lines that are no JSON, or not of the shape their kind declares."""
    unknown_kinds: Counter[str] = field(default_factory=Counter)
    schemas: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """All files that one process wrote."""

    stem: str
    attempt: int
    files: tuple[FileContent, ...]
    headers: tuple[events.Header, ...]

    @property
    def rank(self) -> int | None:
        """Return the rank: the last that a header tells, else what the file name says."""
        told = [header.rank for header in self.headers if header.rank is not None]
        return told[-1] if told else self.files[0].log.rank

    @property
    def run(self) -> str | None:
        """Return the launch's name, None where launcher variables gave none and the process had to make one up."""
        for header in self.headers:
            return None if header.run == f"{header.host}-{header.pid}" else header.run
        return None

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the processes whose headers stand in these files; more than one means files were mixed."""
        return tuple(sorted({header.pid for header in self.headers}))

    @property
    def start_ns(self) -> int:
        """Return the wall time at which recording began, 0 without a header."""
        return min((header.wall_ns for header in self.headers), default=0)

    @property
    def supported(self) -> bool:
        """Return whether all its headers are of a schema that this version reads."""
        return all(is_supported(schema) for content in self.files for schema in content.schemas)


def is_supported(schema: str) -> bool:
    """Return whether logs of a schema can be read: the same major version, whatever the minor one."""
    return re.fullmatch(re.escape(events.SCHEMA) + r"(\.\d+)?", schema) is not None


def contents_of(logs: Sequence[LogFile], lines: Iterable[tuple[int, str | None]]) -> tuple[FileContent, ...]:
    """Decode the lines that the engine found, each into the content of its file."""
    contents = tuple(FileContent(log=log) for log in logs)
    for file, line in lines:
        _decode_into(contents[file], line)
    return contents


def processes_of(contents: Iterable[FileContent]) -> tuple[Process, ...]:
    """Group files by the process that wrote them, segments in order."""
    grouped: dict[tuple[str, int], list[FileContent]] = {}
    for content in contents:
        grouped.setdefault((content.log.stem, content.log.attempt), []).append(content)
    processes = []
    for (stem, attempt), files in sorted(grouped.items()):
        ordered = sorted(files, key=lambda content: content.log.segment)
        headers = tuple(r for content in ordered for r in content.records if isinstance(r, events.Header))
        processes.append(Process(stem=stem, attempt=attempt, files=tuple(ordered), headers=headers))
    return tuple(processes)


def newest_launch(processes: Sequence[Process]) -> tuple[Process, ...]:
    """Return the processes of the launch and attempt that began last; made-up names join any launch."""
    with_rank = [process for process in processes if process.rank is not None and process.supported]
    if not with_rank:
        return ()
    started: dict[str, int] = {}
    for process in with_rank:
        if process.run is not None:
            started[process.run] = max(started.get(process.run, 0), process.start_ns)
    run = max(started, key=lambda name: (started[name], name), default=None)
    of_run = [process for process in with_rank if process.run in (run, None)]
    attempt = max(process.attempt for process in of_run)
    return tuple(process for process in of_run if process.attempt == attempt)


def by_rank(processes: Iterable[Process]) -> Mapping[int, tuple[Process, ...]]:
    """Return the processes of each rank; more than one means that two processes took the same rank."""
    ranks: dict[int, list[Process]] = {}
    for process in processes:
        if process.rank is not None:
            ranks.setdefault(process.rank, []).append(process)
    return {rank: tuple(ranks[rank]) for rank in sorted(ranks)}


def _decode_into(content: FileContent, line: str | None) -> None:
    if line is None:
        content.undecodable += 1
        return
    try:
        record = events.decode(line.encode())
    except msgspec.DecodeError:
        _note_unfit(content, line)
        return
    if isinstance(record, events.Header):
        content.schemas.add(record.schema)
    if not isinstance(record, _BULK):
        content.records.append(record)


def _note_unfit(content: FileContent, line: str) -> None:
    try:
        loose = _loose.decode(line)
    except msgspec.DecodeError:
        content.undecodable += 1
        return
    if loose.kind == "header" and loose.schema is not None and not is_supported(loose.schema):
        content.schemas.add(loose.schema)
    elif not loose.kind or loose.kind in _KNOWN_KINDS:
        content.undecodable += 1
    else:
        content.unknown_kinds[loose.kind] += 1
