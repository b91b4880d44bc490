"""Stacks of all ranks, merged: one tree, each frame with the ranks that are in it.

Ranks in the same functions are one class, whatever the line inside a function; so a thousand ranks show as the two or
three places where they are, and the odd one stands out.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from distdiag.analyzers.investigation.rows import records
from distdiag.findings import StackBranch
from distdiag.run import Run
from distdiag.stackframes import operation_in, split, user_part

MAIN = "MainThread"
STALL = "stall"
MOST_BRANCHES = 200
"""More is a listing, not a picture; the largest branches come first."""
MOST_THREADS = 6
MOST_FOREIGN = 4
"""Innermost frames shown of a stack that has none of the user's."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The stack of one thread of one rank, outermost frame first."""

    rank: int
    thread: str
    frames: tuple[str, ...]


@dataclass(slots=True)
class _Node:
    ranks: set[int] = field(default_factory=set)
    lines: set[int] = field(default_factory=set)
    file: str = ""
    children: dict[tuple[str, str], "_Node"] = field(default_factory=dict)


def stacks_of(run: Run) -> tuple[StackBranch, ...]:
    """Return the newest stacks of all ranks that left any, merged.

    Left out are those of a rank that moved on since, or that was ending when they were taken.
    """
    newest: dict[int, tuple[Sample, ...]] = {}
    issued_ns = run.calls.groupby("rank")["start_ns"].max()
    ended_ns = run.faults.groupby("rank")["time_ns"].min()
    for stack in records(run.stacks.sort_values("time_ns", kind="stable")):
        rank = int(stack.rank)
        outdated = issued_ns.get(rank, 0) > stack.time_ns or ended_ns.get(rank, stack.time_ns) < stack.time_ns
        if stack.reason == STALL and outdated:
            continue
        newest[rank] = tuple(Sample(rank=rank, thread=t.thread, frames=tuple(t.frames)) for t in stack.threads)
    for crash in records(run.crashes[run.crashes["kind"] == "frozen"]):
        newest.setdefault(int(crash.rank), (Sample(rank=int(crash.rank), thread=MAIN, frames=tuple(crash.frames)),))
    return merged(sample for samples in newest.values() for sample in samples)


def merged(samples: Iterable[Sample]) -> tuple[StackBranch, ...]:
    """Return a walk through the tree of all stacks, thread by thread: the main one and the most ranks first."""
    trees: dict[str, _Node] = {}
    for sample in samples:
        told = _told(sample)
        if told:
            _add(trees.setdefault(_NUMBERS.sub("#", sample.thread), _Node()), sample.rank, told)
    order = sorted(trees, key=lambda thread: (thread != MAIN, -len(trees[thread].ranks), thread))
    branches = [branch for thread in order[:MOST_THREADS] for branch in _walk(thread, trees[thread], 0)]
    return tuple(branches[:MOST_BRANCHES])


def _told(sample: Sample) -> tuple[str, ...]:
    """Return the frames that say something: the user's and the innermost; none of an idle thread of a library."""
    own = user_part(sample.frames)
    named = [frame for frame in sample.frames if not split(frame)[2].startswith("0x")]
    if not named:
        return ()
    if not own:
        waits = sample.thread == MAIN or operation_in(sample.frames) is not None
        return tuple(named[-MOST_FOREIGN:]) if waits else ()
    return own if named[-1] == own[-1] else (*own, _spoken(named))


def _spoken(frames: Sequence[str]) -> str:
    """Return the library frame that a reader knows: the collective, else the innermost."""
    op = operation_in(frames)
    named = next((frame for frame in reversed(frames) if split(frame)[2] == op), None)
    return named if named is not None else frames[-1]


def _add(root: _Node, rank: int, frames: Sequence[str]) -> None:
    node = root
    node.ranks.add(rank)
    for frame in frames:
        file, line, function = split(frame)
        node = node.children.setdefault((function, PurePath(file).name), _Node(file=file))
        node.ranks.add(rank)
        node.lines.add(line)


def _walk(thread: str, node: _Node, depth: int) -> Iterable[StackBranch]:
    ordered = sorted(node.children.items(), key=lambda item: (-len(item[1].ranks), min(item[1].ranks), item[0]))
    for (function, _), child in ordered:
        yield StackBranch(
            depth=depth,
            thread=thread,
            function=function,
            file=child.file,
            lines=tuple(sorted(child.lines)),
            ranks=tuple(sorted(child.ranks)),
        )
        yield from _walk(thread, child, depth + 1)
