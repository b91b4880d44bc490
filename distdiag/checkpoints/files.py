"""Verifies checkpoints that are plain files: of ``torch.save``, of safetensors, and folders of either."""

import contextlib
import math
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from distdiag.checkpoints.archives import BROKEN, ZIP_MAGIC, Archive, BrokenError, Window, broken_records, open_archive
from distdiag.checkpoints.contents import Content, names_of, read_content
from distdiag.checkpoints.hashes import item_hash
from distdiag.checkpoints.layout import ITEM_BYTES, Shape
from distdiag.checkpoints.problems import CORRUPT, INCOMPLETE, Facts, Problem, Verification, and_more, span
from distdiag.checkpoints.records import FileRecord, combined, in_words
from distdiag.checkpoints.safetensors import INDEX, check_index, read_header
from distdiag.checkpoints.sharded import Told
from distdiag.checkpoints.shards import ANYBODY_READS

TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
SAFETENSORS = ".safetensors"
OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""Begin of what ``torch.save`` wrote before it wrote archives."""
NUMBER = re.compile(r"\d+")
RANKED = re.compile(r"rank|mp_|dp_|shard|worker", re.IGNORECASE)


@dataclass(slots=True, kw_only=True)
class _Seen:
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tensors: dict[str, Mapping[str, Shape]] = field(default_factory=dict)
    """Tensors in each file of safetensors."""
    count: int = 0
    elements: int = 0
    hashed: int = 0


def checkpoint_files(path: Path) -> list[Path]:
    """Return the files of a checkpoint that is one file, or a folder of them."""
    if path.is_file():
        return [path]
    return sorted(each for each in path.iterdir() if each.name.endswith((*TORCH_ENDINGS, SAFETENSORS)) or _index(each))


def verify_files(path: Path, files: Sequence[Path], told: Told, *, contents: bool = True) -> Verification:
    """Verify files one by one, and that none of a numbered series is gone."""
    seen = _Seen()
    weights = [each for each in files if not _index(each)]
    for file in weights:
        _check_file(file, told, contents, seen)
    for file in filter(_index, files):
        seen.problems += check_index(file, seen.tensors)
    series = _series(weights)
    for pattern, numbers in series.items():
        _check_series(pattern, numbers, seen)
    ranked = [numbers for pattern, numbers in series.items() if RANKED.search(pattern)]
    world_size = max((max(numbers) + 1 for numbers in ranked), default=None)
    safe = all(each.name.endswith(SAFETENSORS) for each in weights)
    hashed = "all" if seen.hashed == len(weights) else "some" if seen.hashed else "none"
    return Verification(
        directory=str(path),
        problems=tuple(seen.problems),
        facts=Facts(
            kind="per-rank" if ranked else "safetensors" if safe else "torch",
            files=len(weights),
            bytes=sum(each.stat().st_size for each in weights),
            tensors=seen.count,
            elements=seen.elements,
            world_size=told.world_size or world_size,
            step=told.step,
            hashed=hashed,
            contents_read=contents,
        ),
        loads=f"only at {world_size} ranks: each file is one rank's own" if ranked else "at any size: it is not split",
        notes=tuple(seen.notes),
        unknowable=_unknowable(safe, len(weights)) if hashed != "all" else (),
    )


def _unknowable(safe: bool, files: int) -> tuple[str, ...]:
    texts = ["a value that changed: safetensors keeps no checksums"] if safe else []
    return (*texts, "a file of another save with the same layout") if files > 1 or safe else tuple(texts)


def _index(path: Path) -> bool:
    return path.name.endswith(INDEX)


def _check_file(file: Path, told: Told, contents: bool, seen: _Seen) -> None:
    mode = file.stat().st_mode
    if not mode & ANYBODY_READS:
        summary = f"{file.name} may be read by nobody (mode {stat.S_IMODE(mode):03o})"
        seen.problems.append(Problem(finding=INCOMPLETE, kind="permissions", summary=summary, file=file.name))
        return
    descriptor = os.open(file, os.O_RDONLY)
    try:
        window = Window(descriptor, 0, os.fstat(descriptor).st_size)
        before = len(seen.problems)
        if not window.length:
            summary = f"{file.name} is empty"
            seen.problems.append(Problem(finding=INCOMPLETE, kind="empty-file", summary=summary, file=file.name))
        elif file.name.endswith(SAFETENSORS):
            _check_safetensors(file.name, window, seen)
        else:
            _check_archive(file.name, window, contents, seen)
        if len(seen.problems) == before:
            _check_hash(file.name, descriptor, window.length, told, seen)
    finally:
        os.close(descriptor)


def _check_archive(name: str, window: Window, contents: bool, seen: _Seen) -> None:
    begin = window.at(0, len(OLD_MAGIC))
    if begin == OLD_MAGIC:
        seen.notes.append(
            f"{name} is of the old format of torch.save, which keeps no checksums: it was not looked into"
        )
        return
    try:
        archive, packed = open_archive(window)
        broken = next(broken_records(window, archive, packed), None) if contents else None
        if broken is not None:
            seen.problems.append(_broken(name, archive, packed, broken))
            return
        content = read_content(archive, packed)
        _check_storages(name, archive.entries, archive.prefix, content, seen)
    except (BrokenError, *BROKEN) as error:
        cut = begin.startswith(ZIP_MAGIC) and "not a zip" in str(error)
        why = f"is cut off at byte {window.length}: its table of contents, at the end, is gone" if cut else str(error)
        kind, finding = ("truncated", INCOMPLETE) if cut else ("no-archive", CORRUPT)
        summary = f"{name} {why if cut else 'is no whole archive of torch.save: ' + why}"
        seen.problems.append(Problem(finding=finding, kind=kind, summary=summary, file=name))


def _broken(name: str, archive: Archive, packed: ZipFile, broken: tuple[str, int, int, str]) -> Problem:
    record, start, end, wrong = broken
    held: list[str] = []
    with contextlib.suppress(BrokenError):  # where the pickle is what broke
        held = names_of(read_content(archive, packed), record)
    about = f"{name}, {span(start, end)}" + (f" ({and_more(held, 'tensors')})" if any(held) else "")
    reason = "do not have the checksum they were saved with" if "CRC" in wrong else f"are damaged ({wrong})"
    tensor = held[0] if held else None
    return Problem(
        finding=CORRUPT,
        kind="checksum",
        summary=f"{about} {reason}",
        file=name,
        tensor=tensor,
        start=start,
        end=end,
    )


def _check_storages(name: str, entries: Iterable[Any], prefix: str, content: Content, seen: _Seen) -> None:
    sizes = {each.filename.removeprefix(prefix): each.file_size for each in entries}
    seen.count += len(content.tensors)
    for tensor in content.tensors:
        seen.elements += math.prod(tensor.shape)
        needed = math.prod(tensor.shape) * ITEM_BYTES.get(tensor.dtype, 0) if all(tensor.stride) else 0
        if needed > sizes.get(tensor.storage, 0):
            size = sizes.get(tensor.storage, 0)
            shape = f"{tensor.dtype} {list(tensor.shape)}"
            summary = f"{name}: {tensor.storage} has {size} bytes, and a tensor {shape} needs {needed}"
            seen.problems.append(Problem(finding=INCOMPLETE, kind="short-tensor", summary=summary, file=name))
            return


def _check_safetensors(name: str, window: Window, seen: _Seen) -> None:
    tensors, problem = read_header(name, window)
    if problem is not None:
        seen.problems.append(problem)
        return
    seen.tensors[name] = {key: tensor.shape for key, tensor in tensors.items()}
    seen.count += len(tensors)
    seen.elements += sum(math.prod(tensor.shape) for tensor in tensors.values())


def _check_hash(name: str, descriptor: int, size: int, told: Told, seen: _Seen) -> None:
    logged = (told.files or {}).get(name)
    if logged is None or logged.endswith(":"):
        return
    seen.hashed += 1
    items = [item_hash(descriptor, 0, size)]
    if in_words(FileRecord(file=name, size_bytes=size, items=items, digest=combined(items))) != logged:
        summary = f"{name} is not what the run's logs say was written"
        seen.problems.append(Problem(finding=CORRUPT, kind="hash", summary=summary, file=name))


def _series(files: Iterable[Path]) -> dict[str, set[int]]:
    """Return series of files that differ in one number: the name with ``*`` to the numbers that are there."""
    series: defaultdict[str, set[int]] = defaultdict(set)
    for file in files:
        for match in NUMBER.finditer(file.name):
            series[f"{file.name[: match.start()]}*{file.name[match.end() :]}"].add(int(match[0]))
    return {pattern: numbers for pattern, numbers in series.items() if len(numbers) > 1}


def _check_series(pattern: str, numbers: set[int], seen: _Seen) -> None:
    gone = sorted(set(range(max(numbers) + 1)) - numbers)
    if not RANKED.search(pattern) or not gone or min(numbers) > 1 or len(gone) >= len(numbers):
        return
    gone = [number for number in gone if number >= min(numbers)] or gone
    if min(numbers) == 1 and gone == [0]:
        return  # counted from one
    name = pattern.replace("*", str(gone[0]))
    summary = f"{name} is not there: of {pattern}, {len(numbers)} files are, up to {max(numbers)}"
    seen.problems.append(Problem(finding=INCOMPLETE, kind="missing-file", summary=summary, file=name))
