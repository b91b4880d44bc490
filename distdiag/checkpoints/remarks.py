"""What is said beside the problems of a sharded checkpoint: files that are over, facts, and what it can be used for."""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from distdiag.checkpoints.hashes import like
from distdiag.checkpoints.layout import Layout, PathOf, Tensor
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
MOST_RANKS = 4096
"""Sizes up to this one are tried for an even split."""
MOST_NAMED = 8
NUMBERED = re.compile(r"^(.*?(?:rank|worker|dp|node)\D{0,2})(\d+)(\D.*)?$", re.IGNORECASE)
"""A name with the number of a rank in it: what it stands for belongs to that rank."""
STATE = "state"
GROUPS = "param_groups"


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
    return notes + mapping_notes(layout, read.values)


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
        elements=elements(layout.tensors.values()),
        world_size=(own.world_size if own is not None else None) or world_size or max(ranks, default=0) + 1,
        step=step if step is not None else saved if isinstance(saved, int) else own.step if own is not None else None,
        version=layout.version,
        save_id=layout.save_id,
        contents_read=contents,
    )


def loads(layout: Layout, world_size: int | None) -> str:
    """Say at which data-parallel sizes a sharded checkpoint can be loaded."""
    sharded = [tensor for tensor in layout.tensors.values() if tensor.size and all(tensor.size)]
    rows = math.gcd(*(tensor.size[0] for tensor in sharded if len(tensor.chunks) > 1)) if sharded else 0
    text = "at any data-parallel size, for each rank reads the rows that it needs"
    even = [size for size in range(1, min(rows, MOST_RANKS) + 1) if rows % size == 0]
    if len(even) > 1:
        text += f"; every tensor that was split divides evenly over {_few(even)}"
    bound = _bound_to_ranks((*layout.tensors, *layout.values))
    if bound:
        at = f" ({world_size} ranks saved it)" if world_size is not None else ""
        text += f"; {_few(bound)} exist once per rank and fit only the same size{at}"
    return text


def _bound_to_ranks(names: Iterable[str]) -> list[str]:
    """Return names that exist with several ranks' numbers, the number written as ``N``."""
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for name in names:
        match = NUMBERED.match(name)
        if match is not None:
            numbers[f"{match[1]}N{match[3] or ''}"].add(int(match[2]))
    return sorted(name for name, found in numbers.items() if len(found) > 1 and found == set(range(len(found))))


def mapping_notes(layout: Layout, values: Mapping[str, object]) -> list[str]:
    """Say where optimizer state and model do not belong together: state that is missing, or of no parameter."""
    states = _states(layout)
    if not states:
        return []
    notes = []
    slots = defaultdict(set)
    for (_, slot), tensor in states.items():
        slots[slot].add(tensor)
    with_state = {parameter for parameter, _ in states}
    grouped = _grouped(layout, values)
    without = sorted(grouped - with_state)
    if without:
        notes.append(f"{_have(without, len(grouped))} no optimizer state: frozen, or never trained?")
    most = {slot for slot, have in slots.items() if len(have) * 2 > len(with_state)}
    for slot in sorted(most):
        lacking = sorted(with_state - slots[slot])
        if lacking:
            notes.append(f"{_have(lacking, len(with_state))} optimizer state, but no {slot}")
    strangers = sorted(parameter for parameter in with_state if not _is_in_model(parameter, layout))
    if strangers and len(strangers) < len(with_state):
        first = f"{strangers[0]}, the first of {len(strangers)}," if len(strangers) > 1 else strangers[0]
        notes.append(f"optimizer state of {first} belongs to no tensor of the model")
    return notes


def _states(layout: Layout) -> dict[tuple[str, str], str]:
    """Return the optimizer's state by parameter and slot: ``("0.weight", "exp_avg")``."""
    states = {}
    for name in layout.tensors:
        path = _path(layout, name)
        if STATE in path[:-2]:
            at = path.index(STATE)
            parameter = ".".join(str(part) for part in path[at + 1 : -1])
            states[parameter, str(path[-1])] = parameter
    return states


def _path(layout: Layout, name: str) -> PathOf:
    return layout.paths.get(name) or tuple(name.split("."))


def _grouped(layout: Layout, values: Mapping[str, object]) -> set[str]:
    """Return the parameters that the optimizer's groups name."""
    named: set[str] = set()
    for name, value in values.items():
        path = _path(layout, name)
        if GROUPS in path and path[-1] == "params" and isinstance(value, list):
            named.update(str(each) for each in value if isinstance(each, str | int))
    return named


def _is_in_model(parameter: str, layout: Layout) -> bool:
    if parameter.isdecimal():
        return True  # the optimizer counts its parameters; which they are is not told
    return any(name.endswith(parameter) and STATE not in _path(layout, name) for name in layout.tensors)


def _have(names: list[str], of: int) -> str:
    if len(names) == 1:
        return f"parameter {names[0]}, one of {of}, has"
    return f"{len(names)} of {of} parameters, first {names[0]}, have"


def _few(what: list[int] | list[str]) -> str:
    shown = ", ".join(map(str, what[:MOST_NAMED]))
    return shown if len(what) <= MOST_NAMED else f"{shown}, … {what[-1]}"


def elements(tensors: Iterable[Tensor]) -> int:
    """Return how many numbers some tensors hold."""
    return sum(math.prod(tensor.size) for tensor in tensors)
