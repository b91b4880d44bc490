"""One call as findings show it, and the name under which people know its group."""

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from distdiag.analyzers.investigation.paths import Frames, location
from distdiag.analyzers.investigation.rows import text, whole
from distdiag.events import GROUP_UNKNOWN, NUMBER_UNKNOWN
from distdiag.run import Run

NAMELESS = frozenset({"", "undefined"})
USUAL = frozenset({"SUM", "AVG"})
"""Kinds of reductions that go without saying."""
_descriptions: weakref.WeakKeyDictionary[Run, dict[tuple[str, tuple[int, ...] | None], str]] = (
    weakref.WeakKeyDictionary()
)
"""By name and members, for as long as the run lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A call that a rank issued."""

    rank: int
    call: int
    op: str
    seq: int
    step: int
    phase: str
    forwards: int
    """Forwards begun in this step."""
    backwards: int
    start_ns: int
    end_ns: int | None
    failed: bool
    error: str | None
    path: Frames
    module: str | None
    thread: str
    dtype: str | None
    shapes: tuple[tuple[int, ...], ...]
    numel: int
    root: int | None
    peer: int | None
    handling: str | None
    reduce_op: str | None

    @property
    def site(self) -> str | None:
        """Return the ``file:line`` of the innermost user frame."""
        return location(self.path[-1]) if self.path else None

    @property
    def payload(self) -> tuple[str | None, int]:
        """Return what the call moves."""
        return self.dtype, self.numel

    def described(self) -> str:
        """Return ``all_reduce of 15 float32``, with what else there is: kind, root, module."""
        words = self.op
        if self.dtype is not None:
            words += f" of {self.numel} {self.dtype}"
        if self.reduce_op is not None and self.reduce_op not in USUAL:
            words += f" by {self.reduce_op}"
        if self.root is not None:
            words += f" from rank {self.root}" if self.op in ("broadcast", "scatter") else f" to rank {self.root}"
        return words + (f" for module {self.module}" if self.module else "")


def issued(run: Run, row: Any) -> Issued:
    """Return the call that a row of the run's calls holds."""
    return Issued(
        rank=int(row.rank),
        call=int(row.call),
        op=str(row.op),
        seq=int(row.seq),
        step=int(row.step),
        phase=str(row.phase),
        forwards=int(row.forwards),
        backwards=int(row.backwards),
        start_ns=int(row.start_ns),
        end_ns=whole(row.end_ns),
        failed=bool(row.failed),
        error=text(row.error),
        path=run.paths.get(int(row.path), ()),
        module=text(row.module),
        thread=str(row.thread),
        dtype=text(row.dtype),
        shapes=tuple(row.shapes),
        numel=int(row.numel),
        root=whole(row.root),
        peer=whole(row.peer),
        handling=text(row.handling),
        reduce_op=text(row.reduce_op),
    )


def settled_ns(calls: Iterable[Issued]) -> int:
    """Return when the fate of a call was settled: its last member had issued it, or the first had failed in it."""
    known = tuple(calls)
    failed = [call.end_ns for call in known if call.failed and call.end_ns is not None]
    return min([max(call.start_ns for call in known), *failed])


def group_name(run: Run, group: str, members: tuple[int, ...] | None) -> str:
    """Return the description that the job gave a group, else the name that c10d gave it."""
    known = _descriptions.get(run)
    if known is None:
        groups = run.groups
        described: dict[tuple[str, tuple[int, ...] | None], str] = {}
        for name, ranks, words in zip(groups["group"], groups["ranks"], groups["description"], strict=True):
            if words not in NAMELESS:
                described.setdefault((name, ranks), words)
        known = _descriptions[run] = described
    return known.get((group, members), group)


def group_words(name: str, members: tuple[int, ...] | None) -> str:
    """Return ``group dp (8 ranks)``."""
    return in_group(name) + ("" if members is None else f" ({len(members)} ranks)")


def in_group(name: str) -> str:
    """Return ``group dp``."""
    return "an unnamed group" if name == GROUP_UNKNOWN else f"group {name}"


def called(op: str, seq: int | None) -> str:
    """Return ``all_reduce 7``, without a number where it is not known."""
    return op if seq in (None, NUMBER_UNKNOWN) else f"{op} {seq}"


def dims(shapes: tuple[tuple[int, ...], ...]) -> str:
    """Return ``15`` or ``4x8`` of the first of some shapes, with the number of the others."""
    if not shapes:
        return "nothing"
    first = "x".join(map(str, shapes[0])) or str(math.prod(shapes[0]))
    return first if len(shapes) == 1 else f"{first} and {len(shapes) - 1} more"
