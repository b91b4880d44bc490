"""Which files of a directory are logs, and how much of each is written."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from distdiag.engine.packs import Manifest, PackedFile, manifest_of
from distdiag.errors import DistdiagError
from distdiag.journal.segments import place_of, rank_of, segments_of
from distdiag.run.held import HeldLog

BLOCK_BYTES = 4096
_RENAMED = re.compile(r"(?:\.(?:jsonl|json|txt|log))+$", re.IGNORECASE)
PROBES = 8
"""Blocks looked at behind the supposed end; a log with a hole in it is rare, but must not lose its second half."""
LAST_LINES_BYTES = 64 << 10
"""Enough of the end of a log to hold its last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One segment of one process's log."""

    path: Path
    stem: str
    attempt: int
    segment: int
    """Its place among the segments that are there."""
    named_rank: int | None
    """The rank that the name says, None for a process that did not know its rank yet."""
    size_bytes: int
    used_bytes: int
    """Without the trailing NULs of a segment that was still mapped, and without a torn last line."""
    torn: bool
    """The last line is cut, as where a process was killed while it wrote."""
    clipped: bool = False
    """It is cut and no NULs follow, which a killed process leaves: the file was cut or copied in part."""
    packed: PackedFile | None = None
    """What a packed run says of the file, which is then not there."""
    held: HeldLog | None = None
    """What would stand in the file, which is then not there either; its sizes are numbers of records."""


def discover(path: Path) -> tuple[LogFile, ...]:
    """Return the logs of a directory (or the one log that ``path`` is), segments of a process in order.

    Raises ``DistdiagError`` when there is no such path, or no log in it.
    """
    manifest = manifest_of(path)
    if manifest is not None:
        return _packed(path, manifest)
    try:
        if path.is_dir():
            logs = segments_of(path)
        elif path.is_file():
            logs = [log for log in segments_of(path.parent) if path in log.files]
            if not logs:
                raise DistdiagError(f"{path} is not named like a log", "logs are called rank00000.jsonl and so on")
            return (_describe(path, logs[0].stem, logs[0].attempt, 0, logs[0].rank),)
        else:
            raise DistdiagError(f"no such file or directory: {path}", "pass the directory given to distdiag.install()")
        if not logs:
            raise DistdiagError(f"no *.jsonl files in {path}", "pass the directory given to distdiag.install()")
        return tuple(
            _describe(file, log.stem, log.attempt, segment, log.rank)
            for log in logs
            for segment, file in enumerate(log.files)
        )
    except OSError as error:
        raise DistdiagError(
            f"cannot read {error.filename or path}: {error.strerror}", "check its permissions"
        ) from error


def discover_files(files: Sequence[Path]) -> tuple[LogFile, ...]:
    """Return some files, whatever they are called, as logs, segments of a process in order.

    Raises ``DistdiagError`` where one cannot be read.
    """
    places = sorted((*place_in(file), file) for file in files)
    try:
        return tuple(_describe(file, stem, attempt, segment, rank_of(stem)) for stem, attempt, segment, file in places)
    except OSError as error:
        raise DistdiagError(f"cannot read {error.filename}: {error.strerror}", "check its permissions") from error


def place_in(file: Path) -> tuple[str, int, int]:
    """Return stem, attempt and segment of a log, which may have been renamed: ``rank00000.jsonl.txt``."""
    return place_of(file.name) or place_of(_RENAMED.sub("", file.name) + ".jsonl") or (file.name, 0, 0)


def first_lines(log: LogFile, size: int = LAST_LINES_BYTES) -> list[bytes]:
    """Return the complete lines at the beginning of a log; of a packed one the header."""
    if log.packed is not None:
        return [] if log.packed.header is None else [log.packed.header.encode()]
    with log.path.open("rb") as file:
        head = file.read(min(size, log.used_bytes))
    lines = head.split(b"\n")
    return lines if len(head) == log.used_bytes else lines[:-1]


def last_lines(log: LogFile) -> list[bytes]:
    """Return the complete lines at the end of a log; of a packed one the last that tells a moment."""
    if log.packed is not None:
        return [] if log.packed.last is None else [log.packed.last.encode()]
    with log.path.open("rb") as file:
        start = max(0, log.used_bytes - LAST_LINES_BYTES)
        tail = os.pread(file.fileno(), log.used_bytes - start, start)
    lines = tail.split(b"\n")
    return lines[1:] if start else lines


def _packed(folder: Path, manifest: Manifest) -> tuple[LogFile, ...]:
    """Return the files that a packed run was made of, in the order of its manifest."""
    logs: list[LogFile] = []
    segments: Counter[tuple[str, int]] = Counter()
    for file in manifest.files:
        stem, attempt, _ = place_of(file.name) or (file.name, 0, 0)
        logs.append(
            LogFile(
                path=folder / file.name,
                stem=stem,
                attempt=attempt,
                segment=segments[stem, attempt],
                named_rank=rank_of(stem),
                size_bytes=file.used_bytes,
                used_bytes=file.used_bytes,
                torn=file.torn,
                packed=file,
            )
        )
        segments[stem, attempt] += 1
    return tuple(logs)


def _describe(path: Path, stem: str, attempt: int, segment: int, rank: int | None) -> LogFile:
    with path.open("rb") as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        used = _written(descriptor, size)
        whole = _without_torn_line(descriptor, used)
    return LogFile(
        path=path,
        stem=stem,
        attempt=attempt,
        segment=segment,
        named_rank=rank,
        size_bytes=size,
        used_bytes=whole,
        torn=whole < used,
        clipped=whole < used == size,
    )


def _without_torn_line(descriptor: int, used: int) -> int:
    """Return where the last complete line ends; a last line that only lacks its newline is complete."""
    size = LAST_LINES_BYTES
    while True:
        start = max(0, used - size)
        tail = os.pread(descriptor, used - start, start)
        newline = tail.rfind(b"\n")
        if newline >= 0 or not start:
            break
        size *= 16
    last = tail[newline + 1 :]
    if not last or _is_json(last):
        return used
    return start + newline + 1


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except msgspec.DecodeError:
        return False


def _written(descriptor: int, size: int) -> int:
    """Return the length without trailing NULs, reading only a few blocks."""
    last = max(0, size - BLOCK_BYTES)
    used = _used_in(descriptor, last)
    if used or not size:
        return last + used
    used = _frontier(descriptor, size)
    step = max(BLOCK_BYTES, (size - used) // PROBES)
    if any(_used_in(descriptor, offset) for offset in range(used + BLOCK_BYTES, size, step)):
        return _last_used(descriptor, size)
    return used


def _frontier(descriptor: int, size: int) -> int:
    # Segments are appended to, so blocks are used up to some block and empty from there on.
    low, high = 0, -(-size // BLOCK_BYTES)
    while low < high:
        middle = (low + high) // 2
        if _used_in(descriptor, middle * BLOCK_BYTES):
            low = middle + 1
        else:
            high = middle
    block = max(0, low - 1) * BLOCK_BYTES
    return block + _used_in(descriptor, block)


def _last_used(descriptor: int, size: int) -> int:
    for block in range(-(-size // BLOCK_BYTES) - 1, -1, -1):
        used = _used_in(descriptor, block * BLOCK_BYTES)
        if used:
            return block * BLOCK_BYTES + used
    return 0


def _used_in(descriptor: int, offset: int) -> int:
    return len(os.pread(descriptor, BLOCK_BYTES, offset).rstrip(b"\0"))
