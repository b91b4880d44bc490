"""What is said beside the problems of a sharded checkpoint: files that are over, observations, facts."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from distdiag.checkpoints import usage
from distdiag.checkpoints.hashes import like
from distdiag.checkpoints.layout import Layout
from distdiag.checkpoints.problems import CORRUPT, Facts, Problem, and_more
from distdiag.checkpoints.records import FileRecord
from distdiag.checkpoints.shards import Entry, Read, read_shards

SHARD_LIKE = re.compile(r".*distcp.*|__\d+_\d+\b.*", re.IGNORECASE)
OF_RANK = re.compile(r"__(\d+)_\d+\.distcp")
KNOWN_VERSIONS = (None, "1.0.0")
FIT_ANYWHERE = ("missing-file", "hash", "swapped", "duplicate")
"""What says nothing against a file being read as another one: of one layout, each fits in the other's place."""
STEP_NAMES = ("step", "global_step", "iteration")
"""Names under which programs save the step they are at."""


def surplus_of(directory: Path, files: Mapping[str, Sequence[Entry]]) -> tuple[str, ...]:
    """Return what looks like a shard and is in no metadata; a rank that had nothing to write leaves an empty one."""
    return tuple(
        sorted(
            each.name
            for each in directory.iterdir()
            if each.name not in files and SHARD_LIKE.fullmatch(each.name) and each.is_file() and each.stat().st_size
        )
    )


def renamed(
    directory: Path, problems: Sequence[Problem], records: Mapping[str, FileRecord], surplus: Sequence[str]
) -> list[Problem]:
    """Say of files that are not there under which name they are, where their hashes tell."""
    told = []
    for problem in problems:
        record = records.get(problem.file or "") if problem.kind == "missing-file" else None
        under = next((name for name in surplus if record is not None and like(directory, record, name)), None)
        if under is not None:
            told.append(
                replace(
                    problem,
                    kind="renamed",
                    summary=f"{problem.file} lies here under the name {under}: give it its own name back",
                )
            )
        else:
            told.append(problem)
    return told


def exchanged(directory: Path, problems: Sequence[Problem], files: Mapping[str, Sequence[Entry]]) -> list[Problem]:
    """Say of two files that only fit one another's place that they were swapped, instead of all that follows of it."""
    hurt = {each.file for each in problems if each.kind not in FIT_ANYWHERE}
    sizes = {name: (directory / name).stat().st_size for name in files if name in hurt and (directory / name).is_file()}
    needed = {name: max(entry.item.end for entry in files[name]) for name in sizes}
    told = list(problems)
    for one, other in itertools.combinations(sizes, 2):
        if (sizes[one], sizes[other]) == (needed[other], needed[one]) and _fit(directory, files, one, other):
            summary = f"{one} and {other} hold what belongs into the other one: the two were swapped"
            told = [problem for problem in told if problem.file not in (one, other)]
            told.append(Problem(finding=CORRUPT, kind="swapped", summary=summary, file=one))
    return told


def _fit(directory: Path, files: Mapping[str, Sequence[Entry]], one: str, other: str) -> bool:
    """Return whether nothing is wrong with two files if each is read as the other one."""
    turned = {
        name: [replace(entry, item=replace(entry.item, file=name)) for entry in files[instead]]
        for name, instead in ((one, other), (other, one))
    }
    return not read_shards(directory, turned, contents=True).problems


def notes_of(
    directory: Path, layout: Layout, read: Read, damaged: Sequence[str], files: Mapping[str, Sequence[Entry]]
) -> list[str]:
    """Return observations that are no damage."""
    notes = []
    surplus = surplus_of(directory, files)
    if surplus:
        notes.append(
            f"no metadata names {and_more(surplus, 'files')}: left by another save, or a copy; nothing reads it"
        )
    if layout.version not in KNOWN_VERSIONS:
        notes.append(f"its format is version {layout.version}; known is {KNOWN_VERSIONS[-1]}")
    if layout.strays:
        notes.append(f"the metadata keeps bytes of {and_more(layout.strays, 'names')} that it does not list")
    for name, foreign in read.foreign.items():
        notes.append(f"{name} is made of {and_more(foreign, 'classes')}, which was not looked into")
    if read.unread:
        notes.append(f"only an extension of its writer can read {and_more(read.unread, 'items')}: not looked into")
    if read.unchecked:
        notes.append(f"{read.unchecked} items were saved without checksums: whether their values changed is not known")
    if damaged:
        notes.append(f"hash records that cannot be read: {', '.join(damaged)}")
    return notes + usage.mapping_notes(layout, read.values)


def facts_of(
    directory: Path,
    layout: Layout,
    files: Mapping[str, Sequence[Entry]],
    read: Read,
    records: Mapping[str, FileRecord],
    worlds: tuple[int | None, int | None],
    *,
    contents: bool,
) -> Facts:
    """Return what the checkpoint is; ``worlds`` are the step and the world size that are known from elsewhere."""
    step, world_size = worlds
    present = [directory / name for name in files if (directory / name).is_file()]
    shards = {each.name for each in directory.iterdir()} | files.keys()
    ranks = [int(match[1]) for match in map(OF_RANK.fullmatch, shards) if match is not None]
    own = next(iter(records.values()), None)
    saved = next((value for name, value in read.values.items() if name in STEP_NAMES), None)
    return Facts(
        kind="sharded",
        files=len(files),
        bytes=sum(path.stat().st_size for path in present),
        tensors=len(layout.tensors),
        chunks=sum(len(tensor.chunks) for tensor in layout.tensors.values()),
        values=len(layout.values),
        elements=usage.elements(layout.tensors.values()),
        world_size=(own.world_size if own is not None else None) or world_size or max(ranks, default=0) + 1,
        step=step if step is not None else saved if isinstance(saved, int) else own.step if own is not None else None,
        version=layout.version,
        save_id=layout.save_id,
        contents_read=contents,
    )
