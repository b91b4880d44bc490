"""The files of a sharded checkpoint: is each there, and does every range of bytes hold what the metadata says?"""

import contextlib
import math
import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from distdiag.checkpoints.archives import ZIP_MAGIC, Archive, BrokenError, Window, broken_records, open_archive
from distdiag.checkpoints.contents import Stored, read_content
from distdiag.checkpoints.layout import ITEM_BYTES, Chunk, Item, Layout, Tensor
from distdiag.checkpoints.problems import CORRUPT, INCOMPLETE, Problem, and_more, place, span, what

MOST_AT_ONCE = 8
"""Files read at a time: checksums are computed beside one another, and more would make a disk seek."""
ANYBODY_READS = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One range of bytes and what it holds."""

    name: str
    item: Item
    tensor: Tensor | None
    chunk: Chunk | None

    @property
    def what(self) -> str:
        """Return the tensor's chunk, or the value's name."""
        return what(self.name, self.chunk)


@dataclass(slots=True, kw_only=True)
class Read:
    """What the reading of all shards brought."""

    problems: list[Problem] = field(default_factory=list)
    broken: set[Item] = field(default_factory=set)
    """Ranges that some problem is about already."""
    values: dict[str, object] = field(default_factory=dict)
    """Values that are no tensors, by name."""
    foreign: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Classes that values are made of, which are not read here."""
    unread: list[str] = field(default_factory=list)
    """Items whose bytes only an extension of the writer can read."""
    unchecked: int = 0
    """Items that were saved without checksums."""


def entries_by_file(layout: Layout) -> dict[str, list[Entry]]:
    """Return what each file holds, in the order of its bytes."""
    files: defaultdict[str, list[Entry]] = defaultdict(list)
    for name, item, tensor, chunk in layout.items():
        files[item.file].append(Entry(name=name, item=item, tensor=tensor, chunk=chunk))
    return {name: sorted(files[name], key=lambda each: each.item.offset) for name in sorted(files)}


def read_shards(directory: Path, files: Mapping[str, Sequence[Entry]], *, contents: bool) -> Read:
    """Check the files that a layout names, several at a time; ``contents=False`` looks at sizes alone."""
    whole = Read()
    with ThreadPoolExecutor(max_workers=min(MOST_AT_ONCE, os.cpu_count() or 1)) as pool:
        for read in pool.map(lambda name: _read_shard(directory, name, files[name], contents), files):
            whole.problems += read.problems
            whole.broken |= read.broken
            whole.values |= read.values
            whole.foreign |= read.foreign
            whole.unread += read.unread
            whole.unchecked += read.unchecked
    return whole


def _read_shard(directory: Path, name: str, entries: Sequence[Entry], contents: bool) -> Read:
    read = Read()
    with _opened(directory, name, entries, read) as descriptor:
        if descriptor is None:
            read.broken.update(entry.item for entry in entries)
            return read
        _check_ranges(name, os.fstat(descriptor).st_size, entries, read)
        if contents:
            _check_contents(name, descriptor, entries, read)
    return read


@contextlib.contextmanager
def _opened(directory: Path, name: str, entries: Sequence[Entry], read: Read) -> Iterator[int | None]:
    """Open a shard for reading; None, and a problem, where that cannot be."""
    trouble = _trouble(directory, name)
    descriptor = None
    if trouble is None:
        try:
            descriptor = os.open(directory / name, os.O_RDONLY)
        except OSError as error:
            trouble = "unreadable", f"cannot be read ({error.strerror})"
    if trouble is not None:
        held = and_more((entry.what for entry in entries), "items")
        read.problems.append(
            Problem(
                finding=INCOMPLETE,
                kind=trouble[0],
                summary=f"{name} {trouble[1]}; it holds {held}",
                file=name,
                tensor=entries[0].name,
            )
        )
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _trouble(directory: Path, name: str) -> tuple[str, str] | None:
    path = directory / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return "outside", "lies outside the checkpoint's folder and was not opened"
    try:
        found = path.stat()
    except FileNotFoundError:
        return "missing-file", "is not there"
    except OSError as error:
        return "unreadable", f"cannot be read ({error.strerror})"
    if not stat.S_ISREG(found.st_mode):
        return "no-file", "is not a file"
    if not found.st_mode & ANYBODY_READS:
        return "permissions", f"may be read by nobody (mode {stat.S_IMODE(found.st_mode):03o})"
    return None


def _check_ranges(name: str, size: int, entries: Sequence[Entry], read: Read) -> None:
    """Check that the ranges lie within the file, one behind the other, and leave nothing over."""
    cut = [entry for entry in entries if entry.item.end > size]
    if cut:
        read.broken.update(entry.item for entry in cut)
        needed = max(entry.item.end for entry in cut)
        state = "is empty" if not size else f"ends at byte {size}"
        read.problems.append(
            Problem(
                finding=INCOMPLETE,
                kind="truncated" if size else "empty-file",
                summary=f"{name} {state} and should have {needed} bytes; lost: "
                f"{and_more((f'{each.what} (bytes {each.item.offset}-{each.item.end - 1})' for each in cut), 'items')}",
                file=name,
                tensor=cut[0].name,
                start=size,
                end=needed,
            )
        )
    at, before = 0, ""
    for entry in entries:
        if entry.item.offset < at:
            summary = f"{place(entry.item)}: {entry.what} lies on top of {before}, which ends at byte {at}"
            read.problems.append(_about(entry, CORRUPT, "bytes-shared", summary))
        at, before = max(at, entry.item.end), entry.what
    if size > at:
        read.problems.append(
            Problem(
                finding=CORRUPT,
                kind="surplus-bytes",
                summary=f"{name}, {span(at, size)}: {size - at} bytes that the metadata does not know follow {before}",
                file=name,
                start=at,
                end=size,
            )
        )


def _check_contents(name: str, descriptor: int, entries: Sequence[Entry], read: Read) -> None:
    found: defaultdict[str, list[Problem]] = defaultdict(list)
    for entry in entries:
        if entry.item in read.broken:
            continue
        problem = _check_item(descriptor, entry, read)
        if problem is not None:
            read.broken.add(entry.item)
            found[problem.kind].append(problem)
    for same in found.values():
        more = f" (and {len(same) - 1} more of the {len(entries)} items of this file)" if len(same) > 1 else ""
        first = same[0]
        read.problems.append(
            Problem(
                finding=first.finding,
                kind=first.kind,
                summary=first.summary + more,
                file=name,
                tensor=first.tensor,
                start=first.start,
                end=first.end,
            )
        )


def _check_item(descriptor: int, entry: Entry, read: Read) -> Problem | None:
    """Return what is wrong with the bytes of one item."""
    if entry.item.transformed:
        read.unread.append(entry.name)
        return None
    window = Window(descriptor, entry.item.offset, entry.item.length)
    about = f"{place(entry.item)} ({entry.what})"
    try:
        archive, packed = open_archive(window)
    except BrokenError as error:
        zeros = not any(window.at(0, len(ZIP_MAGIC)))
        seen = "begin with zeros" if zeros else f"are no whole archive of torch.save ({error})"
        return _about(entry, CORRUPT, "no-archive", f"{about} {seen}")
    for _, start, end, wrong in broken_records(window, archive, packed):
        at = span(entry.item.offset + start, entry.item.offset + end)
        reason = "do not have the checksum they were saved with" if "CRC" in wrong else f"are damaged ({wrong})"
        return _about(entry, CORRUPT, "checksum", f"{entry.item.file}, {at} ({entry.what}) {reason}")
    read.unchecked += not archive.checked
    try:
        content = read_content(archive, packed)
    except BrokenError as error:
        return _about(entry, CORRUPT, "pickle", f"{about}: {error}")
    if entry.tensor is None:
        read.values[entry.name] = content.value
        if content.foreign:
            read.foreign[entry.name] = content.foreign
        return None
    return _compare(entry, content.value if not content.foreign else None, archive, about)


def _compare(entry: Entry, value: object, archive: Archive, about: str) -> Problem | None:
    """Return how a stored tensor differs from what the metadata says of it; other kinds of tensors are not compared."""
    if entry.tensor is None or entry.chunk is None or not isinstance(value, Stored):
        return None
    expected = f"{entry.tensor.dtype} {list(entry.chunk.sizes)}"
    if (value.dtype and value.dtype != entry.tensor.dtype) or value.shape != entry.chunk.sizes:
        held = f"{value.dtype} {list(value.shape)}"
        return _about(entry, CORRUPT, "other-tensor", f"{about} should hold {expected} and hold {held}")
    element, record = ITEM_BYTES.get(entry.tensor.dtype), archive.record(value.storage)
    needed = math.prod(value.shape) * (element or 0)
    if needed and (record is None or record.file_size < needed):
        size = 0 if record is None else record.file_size
        return _about(entry, CORRUPT, "short-tensor", f"{about}: {expected} needs {needed} bytes and has {size}")
    return None


def _about(entry: Entry, finding: str, kind: str, summary: str) -> Problem:
    return Problem(
        finding=finding,
        kind=kind,
        summary=summary,
        file=entry.item.file,
        tensor=entry.name,
        start=entry.item.offset,
        end=entry.item.end,
    )
