"""Compares a checkpoint with the hashes that its save left: what only they can show is found here.

Two shards swapped, a shard or the metadata of another save, a byte flipped where no checksum of the archive reaches:
all of these are whole archives with the right shapes.
"""

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from distdiag.checkpoints.archives import (
    SMALL_BYTES,
    ZIP_MAGIC,
    Archive,
    BrokenError,
    Window,
    frame_digest,
    open_archive,
)
from distdiag.checkpoints.layout import Item
from distdiag.checkpoints.problems import CORRUPT, Problem, and_more, span
from distdiag.checkpoints.records import FileRecord, ItemHash, combined, in_words
from distdiag.checkpoints.shards import Entry

UNKNOWABLE = (
    "two shards of one layout that were swapped",
    "a shard, or all metadata, of another save with the same layout",
    "bytes that changed in the frame of an archive, outside its values",
)
"""What looks whole where the save left no hashes."""
LARGEST_UNSUMMED = 1 << 20
"""Bytes of an item without checksums of its own that are read for a hash; a larger one has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What the comparison with the hashes brought."""

    problems: tuple[Problem, ...]
    hashed: frozenset[str]
    """Files whose hashes are known and cover all that they hold."""
    notes: tuple[str, ...] = ()


def item_hash(descriptor: int, offset: int, length: int) -> ItemHash:
    """Return the digest of a range of bytes of an open file; raises ``BrokenError`` and ``OSError``.

    An archive of ``torch.save`` is hashed without reading its large records, whose own CRCs it holds.
    """
    window = Window(descriptor, offset, length)
    if length <= SMALL_BYTES:  # no record in it is large
        return ItemHash(offset, length, frame_digest(window))
    archive: Archive | None = None
    if window.at(0, len(ZIP_MAGIC)) == ZIP_MAGIC:
        archive, _ = open_archive(window)
    covered = length <= LARGEST_UNSUMMED or (archive is not None and archive.checked)
    entries = archive.entries if archive is not None and archive.checked else ()
    return ItemHash(offset, length, frame_digest(window, entries) if covered else None)


def metadata_digest(data: bytes) -> int:
    """Return the digest of a metadata file."""
    return zlib.crc32(data)


def compare(
    directory: Path,
    records: Mapping[str, FileRecord],
    files: Mapping[str, Sequence[Entry]],
    broken: frozenset[Item] | set[Item],
) -> Compared:
    """Compare every file that has a record with it; ranges that are broken already are not named again."""
    present: dict[str, FileRecord] = {}
    problems: list[Problem] = []
    for name in files:
        record = records.get(name)
        if record is None or not (directory / name).is_file():
            continue
        present[name] = now = _as_it_is(directory, record)
        problem = _difference(record, now, files[name], broken)
        if problem is not None:
            problems.append(problem)
    problems = [_explained(problem, present, records) for problem in problems]
    covered = {name for name in present if records[name].digest is not None}
    return Compared(problems=tuple(problems), hashed=frozenset(covered))


def with_logs(
    compared: Compared, directory: Path, told: Mapping[str, str] | None, files: Mapping[str, Sequence[Entry]]
) -> Compared:
    """Add the comparison of files without a record with what the run's logs say of them."""
    problems, hashed = list(compared.problems), set(compared.hashed)
    for name in sorted((told or {}).keys() & files.keys() - compared.hashed):
        logged = (told or {})[name]
        if logged.endswith(":") or not (directory / name).is_file():
            continue
        items = [ItemHash(entry.item.offset, entry.item.length, None) for entry in files[name]]
        now = _as_it_is(directory, FileRecord(file=name, size_bytes=0, items=items))
        hashed.add(name)
        if in_words(now) != logged:
            summary = f"{name} is not what the run's logs say was written"
            problems.append(Problem(finding=CORRUPT, kind="hash", summary=summary, file=name))
    return replace(compared, problems=tuple(problems), hashed=frozenset(hashed))


def like(directory: Path, record: FileRecord, name: str) -> bool:
    """Return whether the file ``name`` holds what a record, perhaps of another file, says."""
    path = directory / name
    if record.digest is None or not path.is_file() or path.stat().st_size != record.size_bytes:
        return False
    return _as_it_is(directory, msgspec.structs.replace(record, file=name)).digest == record.digest


def _as_it_is(directory: Path, record: FileRecord) -> FileRecord:
    """Return the record that the file would have now, over the ranges of the old one."""
    items: list[ItemHash] = []
    try:
        descriptor = os.open(directory / record.file, os.O_RDONLY)
    except OSError:
        return FileRecord(file=record.file, size_bytes=-1)
    try:
        for item in record.items:
            try:
                items.append(item_hash(descriptor, item.offset, item.length))
            except (BrokenError, OSError):
                items.append(ItemHash(item.offset, item.length, None))
        return FileRecord(
            file=record.file, size_bytes=os.fstat(descriptor).st_size, items=items, digest=combined(items)
        )
    finally:
        os.close(descriptor)


def _difference(
    record: FileRecord, now: FileRecord, entries: Sequence[Entry], broken: frozenset[Item] | set[Item]
) -> Problem | None:
    """Return how a file differs from its record, as far as nothing else has said so."""
    named = {(each.item.offset, each.item.length): each for each in entries}
    known = {(item.offset, item.length) for item in broken if item.file == record.file}
    differing = [
        old
        for old, new in zip(record.items, now.items, strict=True)
        if old.digest is not None and old.digest != new.digest and (old.offset, old.length) not in known
    ]
    if not differing:
        return None
    first = differing[0]
    held = [
        f"{named[each.offset, each.length].what} (bytes {each.offset}-{each.offset + each.length - 1})"
        if (each.offset, each.length) in named
        else span(each.offset, each.offset + each.length)
        for each in differing
    ]
    entry = named.get((first.offset, first.length))
    return Problem(
        finding=CORRUPT,
        kind="hash",
        summary=f"{record.file} is not what the save wrote: {len(differing)} of {len(record.items)} hashes differ, "
        f"{and_more(held, 'items')}",
        file=record.file,
        tensor=entry.name if entry is not None else None,
        start=first.offset,
        end=first.offset + first.length,
    )


def _explained(problem: Problem, present: Mapping[str, FileRecord], records: Mapping[str, FileRecord]) -> Problem:
    """Say whose contents a file has, where another file's record tells."""
    if problem.file is None:
        return problem
    own = present[problem.file]
    for name, record in records.items():
        if name != problem.file and record.digest is not None and record.digest == own.digest:
            other = present.get(name)
            swapped = other is not None and other.digest == records[problem.file].digest
            how = "the two were swapped" if swapped else "it is a copy"
            return replace(
                problem,
                kind="swapped" if swapped else "duplicate",
                summary=f"{problem.file} holds what the save wrote to {name}: {how}",
            )
    return problem
