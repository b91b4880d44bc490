"""Whose log each file is, and which of the launches in a directory is the one to analyse."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from distdiag import events
from distdiag.launch_names import START_TOGETHER_NS, began_later, name_told, names_of_launch
from distdiag.run.logfiles import LogFile, first_lines, last_lines


class _Loose(msgspec.Struct):
    """What can be read of a record whatever its version."""

    kind: str = ""
    schema: str | None = None
    time_ns: int = 0
    start_ns: int = 0
    end_ns: int = 0


_loose = msgspec.json.Decoder(_Loose)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """All files that one process wrote, and what the first of them says about it."""

    stem: str
    attempt: int
    files: tuple[LogFile, ...]
    header: events.Header | None
    schema: str | None
    """What the log calls its own schema; None without a readable header."""
    end_ns: int
    """Wall time of its last record, 0 without a header."""

    @property
    def rank(self) -> int | None:
        """Return the rank that the name or the header tells."""
        named = self.files[0].named_rank
        return named if named is not None else self.header.rank if self.header else None

    @property
    def run(self) -> str | None:
        """Return the launch's name; None where launcher variables gave none and the process made one up."""
        return None if self.header is None else name_told(self.header)

    @property
    def supported(self) -> bool:
        """Return whether its schema can be read; one without a header may be."""
        return self.schema is None or is_supported(self.schema)

    @property
    def start_ns(self) -> int:
        """Return the wall time at which recording began, 0 without a header."""
        return self.header.wall_ns if self.header else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The processes that are analysed, and those that are not."""

    members: Mapping[int, Process]
    """By rank, in order."""
    run: str | None = None
    names: frozenset[str] = frozenset()
    """Under which it goes, in this attempt and in those before."""
    doubled: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Process ids that claimed the same rank at the same time."""
    other_runs: tuple[str, ...] = ()
    older_attempts: tuple[int, ...] = ()
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Newer schema by file name."""
    nameless: tuple[str, ...] = ()
    """Files whose rank is nowhere told."""


def is_supported(schema: str) -> bool:
    """Return whether logs of a schema can be read: the same major version, whatever the minor one."""
    return re.fullmatch(re.escape(events.SCHEMA) + r"(\.\d+)?", schema) is not None


def processes_of(logs: Iterable[LogFile]) -> tuple[Process, ...]:
    """Group files by the process that wrote them; empty files are left out."""
    grouped: dict[tuple[str, int], list[LogFile]] = {}
    for log in logs:
        if log.used_bytes:
            grouped.setdefault((log.stem, log.attempt), []).append(log)
    return tuple(_process(stem, attempt, tuple(files)) for (stem, attempt), files in sorted(grouped.items()))


def choose(processes: Sequence[Process]) -> Launch:
    """Return the launch that began last, one process for each rank.

    Attempts number the logs of a rank, not launches: the second launch into a directory may have ranks that
    the first had not. A rank's newest process belongs to the newest launch if it has its attempt, lived when
    the launch began, or began together with it.
    """
    unsupported = {file.path.name: p.schema or "" for p in processes if not p.supported for file in p.files}
    nameless = tuple(file.path.name for p in processes if p.supported and p.rank is None for file in p.files)
    known = [process for process in processes if process.supported and process.rank is not None]
    if not known:
        return Launch(members={}, unsupported=unsupported, nameless=nameless)
    newest = max(_not_superseded(known), key=lambda process: (process.start_ns, process.stem))
    names = _names(known, newest)
    claims, others = _claims(known, newest, names)
    members: dict[int, Process] = {}
    doubled: dict[int, tuple[int, ...]] = {}
    older: set[int] = set()
    for rank in sorted(claims):
        last = functools.reduce(lambda one, other: other if _began_later(other, one) else one, claims[rank])
        former = [process for process in claims[rank] if process is not last]
        rivals = [each for each in former if each.end_ns > last.start_ns > 0 and not _restarted(each, last)]
        if rivals:
            doubled[rank] = tuple(sorted(p.header.pid for p in (*rivals, last) if p.header))
        member = rivals[0] if rivals else last
        belongs = _belongs(member, newest)
        if belongs:
            members[rank] = member
        older |= {p.attempt for p in claims[rank] if p not in rivals and not (belongs and p is last)}
    return Launch(
        members=members,
        run=newest.run,
        names=names,
        doubled=doubled,
        other_runs=tuple(sorted(others)),
        older_attempts=tuple(sorted(older)),
        unsupported=unsupported,
        nameless=nameless,
    )


def _not_superseded(known: Sequence[Process]) -> list[Process]:
    """Return for each rank and name of a launch the process that began last."""
    last: dict[tuple[int | None, str | None], Process] = {}
    for process in sorted(known, key=lambda process: (process.start_ns, process.attempt)):
        former = last.setdefault((process.rank, process.run), process)
        if _began_later(process, former):
            last[process.rank, process.run] = process
    return list(last.values())


def _began_later(process: Process, other: Process) -> bool:
    if process.header is None or other.header is None:
        return (process.start_ns, process.attempt) > (other.start_ns, other.attempt)
    return began_later(process.header, other.header)


def _names(known: Sequence[Process], newest: Process) -> frozenset[str]:
    headers = [(process.rank or 0, process.header) for process in known if process.header and process.run is not None]
    return frozenset() if newest.header is None else names_of_launch(headers, newest.header)


def _claims(
    known: Sequence[Process], newest: Process, names: frozenset[str]
) -> tuple[dict[int, list[Process]], set[str]]:
    """Return the processes of the newest launch's names by rank, the first one first, and the other names."""
    claims: dict[int, list[Process]] = {}
    others: set[str] = set()
    for process in sorted(known, key=lambda process: (process.start_ns, process.attempt)):
        if process.run is None or newest.run is None or process.run in {newest.run, *names}:
            claims.setdefault(process.rank or 0, []).append(process)
        else:
            others.add(process.run or "")
    return claims, others


def _restarted(process: Process, last: Process) -> bool:
    """Return whether a process only seems to have lived with a later one, by the clock of another host."""
    apart = process.header is not None and last.header is not None and process.header.host != last.header.host
    return apart and abs(last.start_ns - process.start_ns) >= START_TOGETHER_NS


def _belongs(process: Process, newest: Process) -> bool:
    return (
        process.attempt == newest.attempt
        or process.end_ns >= newest.start_ns
        or newest.start_ns - process.start_ns < START_TOGETHER_NS
    )


def _process(stem: str, attempt: int, files: tuple[LogFile, ...]) -> Process:
    header, schema = _first_header(files)
    offset = header.wall_ns - header.monotonic_ns if header else 0
    return Process(
        stem=stem,
        attempt=attempt,
        files=files,
        header=header,
        schema=schema,
        end_ns=_last_moment(files) + offset if header else 0,
    )


def header_line(file: LogFile) -> bytes | None:
    """Return the line of a log that says who wrote it."""
    return next((line for line in first_lines(file) if _read(line).kind == "header"), None)


def moment_line(file: LogFile) -> bytes | None:
    """Return the last line of a log that tells a moment."""
    return next((line for line in reversed(last_lines(file)) if _moment(_read(line))), None)


def _first_header(files: Iterable[LogFile]) -> tuple[events.Header | None, str | None]:
    for file in files:
        line = header_line(file)
        if line is None:
            continue
        try:
            header = events.decode(line)
        except msgspec.DecodeError:
            return None, _read(line).schema
        if isinstance(header, events.Header):
            return header, header.schema
    return None, None


def _last_moment(files: Sequence[LogFile]) -> int:
    line = moment_line(files[-1])
    return 0 if line is None else _moment(_read(line))


def _moment(record: _Loose) -> int:
    return max(record.time_ns, record.start_ns, record.end_ns)


def _read(line: bytes) -> _Loose:
    try:
        return _loose.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Loose()
