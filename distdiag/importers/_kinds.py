"""What many entries of a dump have in common: op, group, sizes, call site, thread."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from distdiag.importers._entries import Entry
from distdiag.importers._interned import Sites, Sizes, flat, numbers_in, plain
from distdiag.importers._operations import Operation, Tensors, operation, together, writable
from distdiag.importers._pickles import RefusedError

MAIN_THREADS = ("python", "pt_main", "pt_autograd")
"""A backward runs on a thread of autograd's while the main thread waits for it: to the program they are one."""
MAX_NUMBERS = 12 << 20
"""Sizes of all entries together; a small pickle may repeat one huge list thousands of times."""
_told = attrgetter(
    "process_group",
    "pg_id",
    "profiling_name",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "output_dtypes",
    "input_split_sizes",
    "output_split_sizes",
    "thread_name",
    "is_p2p",
    "frames",
)


@dataclass(frozen=True, slots=True)
class Undecided:
    """A collective of a backend that does not say how it ended."""

    call: int
    seq: int
    start_ns: int
    op: str
    watched: bool
    """Whether it is still watched."""


@dataclass(slots=True, kw_only=True)
class GroupFacts:
    """What one dump's entries tell of a process group."""

    number: int
    """From 0, in the order in which they came."""
    name: str
    description: str
    backend: str
    first_ns: int
    timeout_ms: int | None = None
    numbers: set[int] = field(default_factory=set)
    """Numbers under which this process knows it."""
    point_to_point: bool = False
    last_seq: int = 0
    """Number of its newest collective."""
    last_started: int | None = None
    last_completed: int | None = None
    undecided: list[Undecided] = field(default_factory=list)

    @property
    def newest_ended(self) -> int:
        """Return the number of the newest collective that is no longer watched."""
        return max((each.seq for each in self.undecided if not each.watched), default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """A signature that lacks what only all dumps together tell: the members of its group, and whether types are."""

    number: int
    group: str
    parts: tuple[tuple[str, Tensors], ...]
    """Op and tensors; several where collectives were coalesced."""
    operation: Operation
    path: int
    thread: str


@dataclass(slots=True, kw_only=True)
class Kind:
    """What many entries have in common."""

    number: int
    """From 0, in the order in which they came."""
    facts: GroupFacts
    operation: Operation
    p2p: bool
    moved: Tensors
    path: int
    thread: str


class Kinds:
    """Tells the kinds of entries, and drafts their signatures."""

    def __init__(self) -> None:
        """Know none."""
        self.all: list[Kind] = []
        self.groups: dict[str, GroupFacts] = {}
        self.drafts: list[Drafted] = []
        self.typed = True
        """Whether all operations that move something tell its type."""
        self._sites = Sites()
        self._sizes = Sizes()
        self._known: dict[Any, Kind] = {}
        self._signatures: dict[Any, int] = {}

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """Return the call sites in the order of their numbers, from 1."""
        return self._sites.paths

    def of(self, entries: Sequence[Entry]) -> list[int]:
        """Return the number of the kind of each entry."""
        found: list[int] = []
        # A job does the same over and over: an entry is most often of the kind that followed upon the last one before.
        followers: dict[int, tuple[Any, int]] = {}
        nothing = None, 0
        last = -1
        budget, weights = MAX_NUMBERS, dict[int, int]()
        for entry, told in zip(entries, map(_told, entries), strict=True):
            follower, number = followers.get(last, nothing)
            if told != follower:
                if budget < 0:
                    break
                kind = self._kind(entry)
                number, weights[kind.number] = kind.number, numbers_in(entry)
                if _comparable(told):
                    followers[last] = told, number
            budget -= weights[number]
            found.append(number)
            last = number
        if budget < 0:
            raise RefusedError("the sizes of its tensors are beyond reason")
        return found

    def signature(self, members: Sequence[Kind]) -> int:
        """Return the number of the signature of a call, or of several that were coalesced into one."""
        kind = members[0]
        parts = tuple((each.operation.op, each.moved) for each in members)
        key = kind.facts.name, kind.operation, kind.path, kind.thread, parts
        number = self._signatures.get(key)
        if number is None:
            number = self._signatures[key] = len(self._signatures) + 1
            self.typed &= all(moved.dtype is not None or not (moved.inputs or moved.outputs) for _, moved in parts)
            self.drafts.append(
                Drafted(
                    number=number,
                    group=kind.facts.name,
                    parts=parts,
                    operation=kind.operation,
                    path=kind.path,
                    thread=kind.thread,
                )
            )
        return number

    def _kind(self, entry: Entry) -> Kind:
        moved, path = self._sizes.of(entry), self._sites.number(entry.frames)
        key = (entry.process_group, entry.pg_id, entry.profiling_name, id(moved), path, entry.thread_name, entry.is_p2p)
        kind = self._known.get(key)
        if kind is None:
            op = operation(entry.profiling_name)
            kind = self._known[key] = Kind(
                number=len(self.all),
                facts=self._facts(entry, op),
                operation=op,
                p2p=op.p2p or bool(entry.is_p2p),
                moved=moved,
                path=path,
                thread=_thread(entry.thread_name),
            )
            self.all.append(kind)
        return kind

    def _facts(self, entry: Entry, op: Operation) -> GroupFacts:
        name, description = map(writable, entry.process_group or (str(entry.pg_id or 0), ""))
        facts = self.groups.get(name)
        if facts is None:
            facts = self.groups[name] = GroupFacts(
                number=len(self.groups),
                name=name,
                description=description,
                backend=op.backend,
                first_ns=entry.time_created_ns or 0,
                timeout_ms=entry.timeout_ms,
            )
        if entry.pg_id is not None:
            facts.numbers.add(entry.pg_id)
        return facts


def joined(drafted: Drafted) -> tuple[str, Tensors]:
    """Return op and tensors of a signature, coalesced collectives as one."""
    if len(drafted.parts) == 1:
        return drafted.parts[0]
    return together([op for op, _ in drafted.parts], [moved for _, moved in drafted.parts])


def _comparable(told: tuple[Any, ...]) -> bool:
    """Return whether comparing with it takes no time, however the other is nested."""
    return all(map(flat, told[3:9])) and plain(told[-1])


def _thread(name: str | None) -> str:
    return "MainThread" if not name or name.startswith(MAIN_THREADS) else writable(name.rstrip("0123456789_"))
