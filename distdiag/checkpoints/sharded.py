"""Verifies a checkpoint of ``torch.distributed.checkpoint``: a folder of shards and their metadata."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from distdiag.checkpoints.hashes import UNKNOWABLE, compare, like, metadata_digest, with_logs
from distdiag.checkpoints.layout import Box, Layout, Tensor, box, hole, merged, outside, overlap
from distdiag.checkpoints.metadata import RefusedError, UnreadableError, read_metadata
from distdiag.checkpoints.problems import CORRUPT, INCOMPLETE, Facts, Problem, Verification
from distdiag.checkpoints.records import FOLDER, FileRecord, in_words, read_records
from distdiag.checkpoints.remarks import exchanged, facts_of, loads, notes_of, renamed, surplus_of
from distdiag.checkpoints.shards import Entry, entries_by_file, read_shards

METADATA = ".metadata"
UNFINISHED = ".metadata.tmp"
SHARD = re.compile(r"__(\d+)_(\d+)\.distcp")
CLOCKS_DIFFER_NS = 60_000_000_000
"""Within a save, shards are written before the metadata, by as much as the hosts' clocks may differ."""
RANK_METADATA = re.compile(r"__(\d+)\.metadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is known of the save from elsewhere: the logs of the run, or who asks."""

    step: int | None = None
    world_size: int | None = None
    files: Mapping[str, str] | None = None
    """``size:digest`` of each file, as the logs say it."""


def is_sharded(directory: Path) -> bool:
    """Return whether a folder holds a sharded checkpoint, or what is left of one."""
    return (directory / METADATA).exists() or any(
        SHARD.fullmatch(each.name) or RANK_METADATA.fullmatch(each.name) for each in directory.iterdir()
    )


def verify_sharded(directory: Path, told: Told, *, contents: bool = True) -> Verification:
    """Verify a sharded checkpoint; with ``contents=False`` only that all of it is there."""
    records, damaged = read_records(directory)
    names, layout, problems = _read_layout(directory, records)
    if layout is None:
        return _without_layout(directory, problems, records, told)
    files = entries_by_file(layout)
    read = read_shards(directory, files, contents=contents)
    records, notes = _of_this_save(directory, records, layout, files)
    problems += read.problems
    problems += _coverage(layout)
    problems += _metadata_hash(directory, names, records, layout, told)
    told_of = records.keys() | (told.files or {}).keys()
    hashed = frozenset(name for name in (*files, *names) if name in records and records[name].digest is not None)
    if contents:
        compared = compare(directory, records, files, read.broken)
        if not any(problem.file in names for problem in problems):
            compared = with_logs(compared, directory, told.files, files)
        problems += compared.problems
        hashed |= compared.hashed | (told_of & set(names))
        problems = exchanged(directory, problems, files)
    problems += _told(records, told)
    problems = renamed(directory, problems, records, surplus_of(directory, files))
    notes += notes_of(directory, layout, read, damaged, files)
    facts = facts_of(directory, layout, files, read, records, (told.step, told.world_size), contents=contents)
    facts = replace(facts, hashed="all" if {*files, *names} <= hashed else "some" if hashed else "none")
    return Verification(
        directory=str(directory),
        problems=tuple(problems),
        facts=facts,
        loads=loads(layout, facts.world_size) if len(names) == 1 else _same_size(len(names)),
        notes=tuple(notes),
        unknowable=UNKNOWABLE if facts.hashed != "all" else (),
    )


def _read_layout(directory: Path, records: Mapping[str, FileRecord]) -> tuple[list[str], Layout | None, list[Problem]]:
    """Return the files that hold the metadata, what they say together, and what is wrong with them."""
    names = sorted(each.name for each in directory.iterdir() if RANK_METADATA.fullmatch(each.name))
    if (directory / METADATA).exists() or not names:
        names = [METADATA]
    problems: list[Problem] = []
    layouts = []
    for name in names:
        try:
            layouts.append(read_metadata((directory / name).read_bytes()))
        except FileNotFoundError:
            problems.append(_no_metadata(directory))
        except (OSError, UnreadableError) as error:
            problems.append(_bad_metadata(directory, name, error, records.get(name)))
    if problems:
        return names, None, problems
    return names, layouts[0] if len(layouts) == 1 else merged(layouts), []


def _no_metadata(directory: Path) -> Problem:
    shards = [each for each in directory.iterdir() if SHARD.fullmatch(each.name)]
    size = sum(each.stat().st_size for each in shards)
    unfinished = f"; its unfinished {UNFINISHED} is" if (directory / UNFINISHED).exists() else ""
    return Problem(
        finding=INCOMPLETE,
        kind="no-metadata",
        summary=f"{METADATA} is not there{unfinished}: without it nobody can tell what the {len(shards)} shards hold "
        f"({size:,} bytes). It is written last, so the save did not end, or the file was lost",
        file=METADATA,
    )


def _bad_metadata(directory: Path, name: str, error: Exception, record: FileRecord | None) -> Problem:
    if isinstance(error, RefusedError):
        return Problem(
            finding=CORRUPT, kind="metadata-refused", summary=f"{name} is not to be trusted: {error}", file=name
        )
    if isinstance(error, OSError):
        summary = f"{name} cannot be read ({error.strerror})"
        return Problem(finding=INCOMPLETE, kind="unreadable", summary=summary, file=name)
    size = (directory / name).stat().st_size
    cut = record is not None and size < record.size_bytes
    state = f"is cut off: {size} of {record.size_bytes} bytes are there" if cut and record is not None else str(error)
    return Problem(
        finding=INCOMPLETE if cut or not size else CORRUPT,
        kind="metadata",
        summary=f"{name} {'is empty' if not size else state if cut else 'is damaged: ' + state}",
        file=name,
        start=size if cut else None,
        end=record.size_bytes if cut and record is not None else None,
    )


def _without_layout(
    directory: Path, problems: list[Problem], records: Mapping[str, FileRecord], told: Told
) -> Verification:
    """Say what can be said of shards whose metadata is lost."""
    shards = sorted(each.name for each in directory.iterdir() if SHARD.fullmatch(each.name))
    compared = compare(directory, records, dict.fromkeys(shards, ()), frozenset())
    intact = len(compared.hashed) - len(compared.problems)
    notes = [f"{intact} of {len(shards)} shards are what the save wrote, by its hashes"] if compared.hashed else []
    ranks = {int(match[1]) for match in map(SHARD.fullmatch, shards) if match is not None}
    return Verification(
        directory=str(directory),
        problems=(*problems, *compared.problems),
        facts=Facts(
            kind="sharded",
            files=len(shards),
            bytes=sum((directory / name).stat().st_size for name in shards),
            world_size=told.world_size or max(ranks, default=-1) + 1 or None,
            step=told.step,
        ),
        loads="not at all, without its metadata",
        notes=tuple(notes),
    )


def _of_this_save(
    directory: Path, records: Mapping[str, FileRecord], layout: Layout, files: Mapping[str, list[Entry]]
) -> tuple[Mapping[str, FileRecord], list[str]]:
    """Return the records, or none where an unrecorded save has overwritten all that they are about."""
    own = records.get(METADATA)
    if own is None or layout.save_id is None or own.save_id in (None, layout.save_id):
        return records, []
    if any(like(directory, records[name], name) for name in files if name in records):
        return records, []
    note = f"the hashes in {FOLDER} are of an earlier save, which this one overwrote unrecorded: they were not used"
    return {}, [note]


def _coverage(layout: Layout) -> Iterator[Problem]:
    """Yield what keeps a tensor from being covered exactly once."""
    for tensor in layout.tensors.values():
        boxes = list(dict.fromkeys((chunk.offsets, chunk.sizes) for chunk in tensor.chunks))
        lost = [each for each in tensor.chunks if each.item is None and all(each.sizes)]
        if lost:
            missing = f"{tensor.name}{box(lost[0].offsets, lost[0].sizes)}"
            yield _of_tensor(tensor, INCOMPLETE, "no-bytes", f"{missing}: {METADATA} does not say where its bytes are")
        for beyond in outside(tensor.size, boxes):
            summary = f"{tensor.name}{box(*beyond)} reaches beyond the tensor, which is {list(tensor.size)}"
            yield _of_tensor(tensor, CORRUPT, "outside-tensor", summary)
        twice = overlap(boxes)
        if twice is not None:
            summary = f"{tensor.name}{box(*twice[0])} and {box(*twice[1])} overlap: which of them counts is chance"
            yield _of_tensor(tensor, CORRUPT, "covered-twice", summary)
        gap: Box | None = hole(tensor.size, boxes)
        if gap is not None:
            summary = f"{tensor.name}{box(*gap)} is in no shard"
            yield _of_tensor(tensor, INCOMPLETE, "hole", summary)
    for name, item in layout.values.items():
        if item is None:
            yield Problem(
                finding=INCOMPLETE,
                kind="no-bytes",
                summary=f"{name}: {METADATA} does not say where its bytes are",
                tensor=name,
            )


def _of_tensor(tensor: Tensor, finding: str, kind: str, summary: str) -> Problem:
    return Problem(finding=finding, kind=kind, summary=summary, tensor=tensor.name)


def _metadata_hash(
    directory: Path, names: list[str], records: Mapping[str, FileRecord], layout: Layout, told: Told
) -> Iterator[Problem]:
    """Yield that the metadata is not what the save wrote."""
    for name in names:
        data = (directory / name).read_bytes()
        now = FileRecord(file=name, size_bytes=len(data), digest=metadata_digest(data))
        record = records.get(name)
        logged = (told.files or {}).get(name)
        if record is not None and record.digest != now.digest:
            other = record.save_id is not None and layout.save_id is not None and record.save_id != layout.save_id
            at = f" of step {record.step}" if record.step is not None else ""
            how = (
                f"it is of another save ({layout.save_id}; the shards are of {record.save_id})" if other else "changed"
            )
            yield Problem(
                finding=CORRUPT,
                kind="metadata-of-another-save" if other else "metadata-hash",
                summary=f"{name} is not what the save{at} wrote: {how}",
                file=name,
            )
        elif record is None and logged is not None and logged != in_words(now):
            summary = f"{name} is not what the run's logs say was written"
            yield Problem(finding=CORRUPT, kind="metadata-hash", summary=summary, file=name)


def _told(records: Mapping[str, FileRecord], told: Told) -> Iterator[Problem]:
    """Yield where the save's own records disagree, among themselves or with what is known from elsewhere."""
    finished = records[METADATA].wall_ns if METADATA in records else None
    late = [
        record
        for _, record in sorted(records.items())
        if finished is not None and record.wall_ns is not None and record.wall_ns > finished + CLOCKS_DIFFER_NS
    ]
    if late:
        others = f" and {len(late) - 1} more" if len(late) > 1 else ""
        summary = (
            f"{late[0].file}{others}: written {(late[0].wall_ns or 0) / 1e9 - (finished or 0) / 1e9:.0f} s after "
            f"{METADATA}, which every save writes last: a later save began to overwrite this one and did not end"
        )
        yield Problem(finding=CORRUPT, kind="overwritten", summary=summary, file=late[0].file)
    steps = {record.step: name for name, record in sorted(records.items()) if record.step is not None}
    if told.step is not None and steps and told.step not in steps:
        step, name = next(iter(steps.items()))
        summary = f"{name} was saved at step {step}, not at step {told.step}"
        yield Problem(finding=CORRUPT, kind="other-step", summary=summary, file=name)
    worlds = {record.world_size: name for name, record in sorted(records.items()) if record.world_size is not None}
    if told.world_size is not None and worlds and told.world_size not in worlds:
        world, name = next(iter(worlds.items()))
        summary = f"{name} was saved by {world} ranks, not by {told.world_size}"
        yield Problem(finding=CORRUPT, kind="other-world", summary=summary, file=name)


def _same_size(ranks: int) -> str:
    return f"only at {ranks} ranks: each has metadata of its own"
