"""The operations in one dump as calls, signatures and ends; and what each group's other members have to be asked for.

Calls are numbered in the order in which they were recorded. Collectives that were coalesced share one sequence
number and become one call; messages of one batch stay calls of their own. The last entry of a batch alone says
whether it completed: its members read ``scheduled`` for ever.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distdiag import events
from distdiag.importers._dumps import Dump, Entry
from distdiag.importers._interned import Sites, Sizes
from distdiag.importers._operations import COALESCED, Operation, Tensors, operation, together, writable

UNKNOWN_STEP = -1
MILLISECOND_NS = 1_000_000
FRESH_NS = 3_000_000_000
"""A dump so young was made while its job ran; of an older one nobody knows how long after."""
DEFAULT_TIMEOUT_MS = 600_000
MAIN_THREADS = ("python", "pt_main", "pt_autograd")
"""A backward runs on a thread of autograd's while the main thread waits for it: to the program they are one."""


@dataclass(slots=True, kw_only=True)
class GroupFacts:
    """What one dump's entries tell of a process group."""

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
    undecided: list[tuple[events.Call, str, bool]] = field(default_factory=list)
    """Collectives of a backend that does not say how they ended: call, op, and whether it is still watched."""
    batch: list["_Numbered"] = field(default_factory=list)
    """Newest entries, all of one sequence number, while the dump is read."""
    batch_key: int | None = None

    @property
    def newest_ended(self) -> int:
        """Return the number of the newest collective that is no longer watched."""
        return max((call.seq for call, _, watched in self.undecided if not watched), default=-1)


@dataclass(slots=True, kw_only=True)
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
class _Kind:
    """What many entries have in common."""

    facts: GroupFacts
    operation: Operation
    p2p: bool
    moved: Tensors
    path: int
    thread: str
    signature: int | None = None
    """Number of its signature, once a call of its own has it."""


_Numbered = tuple[int, Entry, _Kind]


class Transcript:
    """The records that one dump becomes."""

    def __init__(self, dump: Dump, rank: int, written_ns: int | None = None) -> None:
        """Read all entries; raise ``RefusedError`` where they are beyond reason.

        ``written_ns`` is when the file was written, as its folder says; a copy is younger than the dump.
        """
        self.dump = replace(dump, entries=())  # they are a multiple of what they become
        self.rank = rank
        self.calls: list[events.Event] = []
        self.drafts: list[Drafted] = []
        self.groups: dict[str, GroupFacts] = {}
        self.typed = True
        self.entries = len(dump.entries)
        self.first_record = min((entry.record_id for entry in dump.entries), default=0)
        """Number of its oldest entry: as many had been overwritten, or were left out as no longer active."""
        created = [entry.time_created_ns for entry in dump.entries if entry.time_created_ns]
        completed = [e.time_discovered_completed_ns for e in dump.entries if e.time_discovered_completed_ns]
        self.first_ns, self.last_ns = min(created, default=0), max([*created, *completed], default=0)
        self.told_ns = 0
        """When the backend told how far it was: not known but for a file as young as its newest entry."""
        self._kinds: dict[Any, _Kind] = {}
        self._signatures: dict[Any, int] = {}
        self._sites = Sites()
        self._sizes = Sizes()
        self._batches = 0
        self._mute = _is_mute(dump.entries)
        self._read(dump.entries)
        if written_ns is not None and 0 <= written_ns - self.last_ns < FRESH_NS:
            self.told_ns = written_ns

    @property
    def paths(self) -> Iterator[events.Path]:
        """Yield the call sites."""
        return self._sites.records()

    def _read(self, entries: Sequence[Entry]) -> None:
        for number, entry in enumerate(entries, start=1):
            kind = self._kind(entry)
            facts = kind.facts
            # Negative numbers are those of messages, which are counted apart.
            key = ~entry.p2p_seq_id if kind.p2p else entry.seq
            if key == facts.batch_key:
                facts.batch.append((number, entry, kind))
                continue
            if facts.batch:
                self._flush(facts)
            facts.batch_key, facts.batch = key, [(number, entry, kind)]
        for facts in self.groups.values():
            self._flush(facts)

    def _kind(self, entry: Entry) -> _Kind:
        moved, path = self._sizes.of(entry), self._sites.number(entry.frames)
        key = (entry.process_group, entry.pg_id, entry.profiling_name, id(moved), path, entry.thread_name, entry.is_p2p)
        kind = self._kinds.get(key)
        if kind is None:
            op = operation(entry.profiling_name)
            kind = self._kinds[key] = _Kind(
                facts=self._facts(entry, op),
                operation=op,
                p2p=op.p2p or bool(entry.is_p2p),
                moved=moved,
                path=path,
                thread=_thread(entry.thread_name),
            )
        return kind

    def _facts(self, entry: Entry, op: Operation) -> GroupFacts:
        name, description = map(writable, entry.process_group or (str(entry.pg_id or 0), ""))
        facts = self.groups.get(name)
        if facts is None:
            facts = self.groups[name] = GroupFacts(
                name=name,
                description=description,
                backend=op.backend,
                first_ns=entry.time_created_ns or 0,
                timeout_ms=entry.timeout_ms,
            )
        if entry.pg_id is not None:
            facts.numbers.add(entry.pg_id)
        return facts

    # ---- calls ------------------------------------------------------------------------------------------------------
    def _flush(self, facts: GroupFacts) -> None:
        """Make calls of the newest entries of a group, which share one sequence number."""
        batch = facts.batch
        number, first, kind = batch[0]
        last, closing = batch[-1][1:]
        facts.point_to_point |= kind.p2p or last.p2p_seq_id > 0
        terminator = last if len(batch) > 1 and closing.operation.op.endswith(COALESCED) else None
        members = batch[:-1] if terminator is not None else batch
        if kind.p2p:
            self._messages(members, terminator)
            return
        facts.last_seq = max(facts.last_seq, first.seq)
        signature = self._signature(members)
        call = self._call(number, first, signature, first.seq)
        self._end(facts, call, terminator or last, kind.operation.op)

    def _messages(self, batch: Sequence[_Numbered], terminator: Entry | None) -> None:
        several = len(batch) > 1 or terminator is not None
        self._batches += several
        for numbered in batch:
            number, entry, kind = numbered
            if not kind.operation.p2p:  # the end of a batch whose messages the ring no longer holds
                continue
            coalesced = self._batches if several else None
            call = self._call(number, entry, self._signature([numbered]), entry.p2p_seq_id, coalesced)
            self._end(kind.facts, call, terminator or entry, kind.operation.op)

    def _signature(self, members: Sequence[_Numbered]) -> int:
        """Return the number of the signature of a call, or of several that were coalesced into one."""
        kind = members[0][2]
        if len(members) == 1 and kind.signature is not None:
            return kind.signature
        parts = tuple((each.operation.op, each.moved) for _, _, each in members)
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
        if len(members) == 1:
            kind.signature = number
        return number

    def _call(self, number: int, entry: Entry, signature: int, seq: int, coalesced: int | None = None) -> events.Call:
        start_ns = entry.time_created_ns or 0
        self.told_ns = max(self.told_ns, start_ns)
        call = events.Call(
            call=number, signature=signature, seq=seq, step=UNKNOWN_STEP, start_ns=start_ns, coalesced=coalesced
        )
        self.calls.append(call)
        return call

    def _end(self, facts: GroupFacts, call: events.Call, entry: Entry, op: str) -> None:
        collective = op not in ("send", "recv", "recv_any_source")
        if entry.state == "completed":
            discovered = entry.time_discovered_completed_ns or 0
            self.calls.append(
                events.Done(
                    call=call.call,
                    end_ns=max(discovered, call.start_ns),
                    clock="poll" if discovered else "unknown",
                    duration_ns=_duration_ns(entry.duration_ms),
                )
            )
            if collective:
                facts.last_completed = max(facts.last_completed or 0, call.seq)
        elif entry.retired and not self._mute:
            self.calls.append(timed_out(call, entry.timeout_ms))
        if collective and entry.time_discovered_started_ns and entry.state != "scheduled":
            facts.last_started = max(facts.last_started or 0, call.seq)
        if collective and self._mute:
            facts.undecided.append((call, op, not entry.retired))


def timed_out(call: events.Call, timeout_ms: int | None, why: str = "") -> events.Done:
    """Return the end of a call that was given up."""
    allowed = DEFAULT_TIMEOUT_MS if timeout_ms is None else min(timeout_ms, 1 << 40)
    return events.Done(
        call=call.call,
        end_ns=call.start_ns + allowed * MILLISECOND_NS,
        clock="unknown",
        failed=True,
        error=f"timed out{why}: given up without having completed",
    )


def _is_mute(entries: Sequence[Entry]) -> bool:
    """Return whether the backend never says that an operation completed, only that it is no longer watched."""
    if any(entry.state not in (None, "scheduled") for entry in entries):
        return False
    if any(entry.profiling_name.startswith("gloo:") for entry in entries):
        return True
    retired = [entry.process_group for entry in entries if entry.retired]
    return len(retired) > len(set(retired))


def _thread(name: str | None) -> str:
    return "MainThread" if not name or name.startswith(MAIN_THREADS) else writable(name.rstrip("0123456789_"))


def _duration_ns(duration_ms: float | None) -> int | None:
    if duration_ms is None or not math.isfinite(duration_ms) or not 0 <= duration_ms < 1e12:
        return None
    return round(duration_ms * MILLISECOND_NS)


def joined(drafted: Drafted) -> tuple[str, Tensors]:
    """Return op and tensors of a signature, coalesced collectives as one."""
    if len(drafted.parts) == 1:
        return drafted.parts[0]
    return together([op for op, _ in drafted.parts], [moved for _, moved in drafted.parts])
