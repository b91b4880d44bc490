"""A trace as columns of numbers: what devices did, what launched it, and the steps."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from distdiag.allocation import without_collecting
from distdiag.importers._traces.decoding import Arguments, Event, Facts, decode_ending, decode_piece
from distdiag.importers._traces.pieces import Pieces
from distdiag.importers._traces.times import MAX_NUMBER, UNKNOWN, Numbers, nanoseconds

COMPUTE, COMMUNICATION, MEMORY = 0, 1, 2
"""Classes of what a device does."""
MAX_ROWS = 10_000_000
"""Events kept of one file, about a gigabyte; a longer trace is measured up to there."""
MAX_NAMES = 200_000
MAX_NAME_CHARACTERS = 1000

_KERNELS = frozenset({"kernel", "Kernel"})
_COPIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
_LAUNCHERS = ("_runtime", "_driver")
_OLD_LAUNCHERS = frozenset({"Runtime"})
_P2P = frozenset({"send", "recv"})
DEFAULT_GROUP = "default_pg"
_ANNOTATION = "user_annotation"
_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
_DIGITS = re.compile(r"\d{1,18}")
_COLLECTIVE = re.compile(r"(?:void )?(?:nccl|rccl|oneccl)|.*\bnccl(?:Dev)?Kernel", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Activity:
    """What devices did, one row per kernel or copy, in the order of the file."""

    start_ns: Numbers
    end_ns: Numbers
    device: Numbers
    stream: Numbers
    correlation: Numbers
    kind: Numbers
    name: Numbers
    """Index of ``Trace.names``."""
    group: Numbers
    """Index of ``Trace.groups``, -1 where the event names none."""
    seq: Numbers
    """c10d's number of the collective, -1 where the event has none."""
    p2p: Numbers
    """1 for a send or a receive that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group as kernels name it."""

    name: str
    description: str
    members: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """One file."""

    path: Path
    base_ns: int
    """To be added to all times before they are compared with another file's."""
    rank: int | None
    world_size: int | None
    rocm: bool
    """Recorded on an AMD device."""
    activity: Activity
    launch_correlation: Numbers
    launch_start_ns: Numbers
    steps: Numbers
    step_start_ns: Numbers
    names: Sequence[str]
    groups: Sequence[Group]
    events: int
    notes: tuple[str, ...]
    """What could not be read, in words."""


def read_trace(path: Path) -> Trace:
    """Read a file; raise ``NotATraceError`` where it holds no trace, and ``OSError`` where it cannot be read."""
    with without_collecting():
        return _read(path)


def _read(path: Path) -> Trace:
    columns = _Columns()
    pieces = Pieces(path)
    for piece in pieces:
        events, unreadable = decode_piece(piece)
        columns.unreadable += unreadable
        columns.add(events)
        del piece, events  # or they would stay while the next ones are made
    ending = decode_ending(pieces.head, pieces.tail)
    columns.unreadable += ending.unreadable
    columns.add(ending.events)
    return columns.trace(path, ending.facts, pieces.damage or (None if ending.whole else "its text ends early"))


class _Kinds(dict[str | None, int]):
    """Where an event belongs by its category; most belong nowhere."""

    NOWHERE, KERNEL, COPY, LAUNCH, ANNOTATION = range(5)

    def __missing__(self, category: str | None) -> int:
        text = category or ""
        if text in _KERNELS:
            kind = self.KERNEL
        elif text in _COPIES:
            kind = self.COPY
        elif text.endswith(_LAUNCHERS) or text in _OLD_LAUNCHERS:
            kind = self.LAUNCH
        else:
            kind = self.ANNOTATION if text == _ANNOTATION else self.NOWHERE
        if len(self) < MAX_NAMES:
            self[category] = kind
        return kind


@dataclass(slots=True)
class _Columns:
    """Columns that grow piece by piece."""

    events: int = 0
    unreadable: int = 0
    left_out: int = 0
    kinds: _Kinds = field(default_factory=_Kinds)
    names: dict[str, int] = field(default_factory=dict)
    collective: list[bool] = field(default_factory=list)
    """By name, whether it is that of a communication kernel."""
    groups: dict[tuple[str, str, str], int] = field(default_factory=dict)
    activity: list[Numbers] = field(default_factory=list)
    launches: list[Numbers] = field(default_factory=list)
    steps: list[Numbers] = field(default_factory=list)
    rows: int = 0
    default_size: int = UNKNOWN
    """Size of the group of all ranks, where a kernel tells it."""

    def add(self, events: Sequence[Event]) -> None:
        """Keep what is needed of some events."""
        self.events += len(events)
        kinds = self.kinds
        wanted = [event for event in events if kinds[event.cat]]
        if self.rows + len(wanted) > MAX_ROWS:
            self.left_out += len(wanted)
            return
        self.rows += len(wanted)
        of_kind = [kinds[event.cat] for event in wanted]
        device = [event for event, kind in zip(wanted, of_kind, strict=True) if kind <= kinds.COPY]
        self._add_activity([event for event in device if _stream(event) != UNKNOWN])
        self._add_launches([event for event, kind in zip(wanted, of_kind, strict=True) if kind == kinds.LAUNCH])
        self._add_steps([event for event, kind in zip(wanted, of_kind, strict=True) if kind == kinds.ANNOTATION])

    def _add_activity(self, events: Sequence[Event]) -> None:
        if not events:
            return
        start, duration = nanoseconds([e.ts for e in events]), nanoseconds([e.dur for e in events])
        arguments = [e.args for e in events if isinstance(e.args, Arguments)]
        names = [self._name(e.name) for e in events]
        rows = np.array(
            [
                start,
                start + duration,
                [max(UNKNOWN, _whole(a.device)) for a in arguments],
                [_stream_of(a) for a in arguments],
                [_whole(a.correlation) for a in arguments],
                [self._kind(event, name) for event, name in zip(events, names, strict=True)],
                names,
                [UNKNOWN if a.group is None else self._group(a) for a in arguments],
                [UNKNOWN if a.seq is None else _whole(a.seq) for a in arguments],
                [isinstance(a.collective, str) and a.collective.lower() in _P2P for a in arguments],
            ],
            dtype=np.int64,
        )
        good = (start != UNKNOWN) & (duration >= 0)
        self.unreadable += int((~good).sum())
        self.activity.append(rows[:, good])

    def _add_launches(self, events: Sequence[Event]) -> None:
        numbers = [_whole(e.args.correlation) if isinstance(e.args, Arguments) else UNKNOWN for e in events]
        rows = np.array([numbers, nanoseconds([e.ts for e in events])], dtype=np.int64)
        self.launches.append(rows[:, (rows[0] >= 0) & (rows[1] != UNKNOWN)])

    def _add_steps(self, events: Sequence[Event]) -> None:
        found = [(m.group(1), e.ts) for e in events if e.name is not None and (m := _STEP.match(e.name))]
        if found:
            rows = np.array([[int(n) for n, _ in found], nanoseconds([ts for _, ts in found])], dtype=np.int64)
            self.steps.append(rows[:, rows[1] != UNKNOWN])

    def _name(self, name: str | None) -> int:
        text = (name or "")[:MAX_NAME_CHARACTERS]
        known = self.names.get(text)
        if known is None:
            if len(self.names) >= MAX_NAMES:
                text = "(other names)"
            known = self.names.setdefault(text, len(self.names))
            if known == len(self.collective):
                self.collective.append(_COLLECTIVE.match(text) is not None)
        return known

    def _kind(self, event: Event, name: int) -> int:
        if self.kinds[event.cat] == self.kinds.COPY:
            return MEMORY
        named = isinstance(event.args, Arguments) and event.args.collective is not None
        return COMMUNICATION if named or self.collective[name] else COMPUTE

    def _group(self, arguments: Arguments) -> int:
        told = (arguments.group, arguments.description, arguments.members)
        if arguments.description == DEFAULT_GROUP:
            self.default_size = max(self.default_size, _whole(arguments.size))
        key = tuple(each[:MAX_NAME_CHARACTERS] if isinstance(each, str) else "" for each in told)
        if len(self.groups) >= MAX_NAMES:
            return UNKNOWN
        return self.groups.setdefault((key[0], key[1], key[2]), len(self.groups))

    def trace(self, path: Path, facts: Facts, cut: str | None) -> Trace:
        """Return what was kept of a file; ``cut`` says why it ends early."""
        rows = np.concatenate([np.empty((len(fields(Activity)), 0), np.int64), *self.activity], axis=1)
        self.activity.clear()
        launches = np.concatenate([np.empty((2, 0), np.int64), *self.launches], axis=1)
        steps = np.concatenate([np.empty((2, 0), np.int64), *self.steps], axis=1)
        told = facts.distributed if isinstance(facts.distributed, dict) else {}
        rank, world = _whole(told.get("rank")), max(_whole(told.get("world_size")), self.default_size)
        base_ns = _whole(facts.base_ns)
        return Trace(
            path=path,
            base_ns=max(0, base_ns),
            rank=rank if rank >= 0 else None,
            world_size=world if world > 0 else None,
            rocm=facts.roctracer_version is not None or facts.hip_runtime_version is not None,
            activity=Activity(**dict(zip((each.name for each in fields(Activity)), rows, strict=True))),
            launch_correlation=launches[0],
            launch_start_ns=launches[1],
            steps=steps[0],
            step_start_ns=steps[1],
            names=list(self.names),
            groups=[Group(name=name, description=text, members=members) for name, text, members in self.groups],
            events=self.events,
            notes=tuple(self._notes(path, cut)),
        )

    def _notes(self, path: Path, cut: str | None) -> Iterator[str]:
        if cut is not None:
            yield f"{path.name} is truncated ({cut}): its {self.events} complete events were read"
        if self.unreadable:
            yield f"{path.name}: {self.unreadable} of {self.events + self.unreadable} events make no sense"
        if self.left_out:
            yield f"{path.name}: only its first {MAX_ROWS} launches and device activities were read"


def _stream(event: Event) -> int:
    return _stream_of(event.args) if isinstance(event.args, Arguments) else UNKNOWN


def _stream_of(arguments: Arguments) -> int:
    return _whole(arguments.stream if arguments.stream is not None else arguments.queue)


def _whole(value: Any) -> int:
    """Return a number that is not negative as it is, also where it is written as text, -1 for everything else."""
    if (type(value) is float and value.is_integer()) or (type(value) is str and _DIGITS.fullmatch(value)):
        value = int(value)
    return value if type(value) is int and 0 <= value < MAX_NUMBER else UNKNOWN
