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
from distdiag.importers._operations import COALESCED, Operation, Tensors, operation, together

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
        self.first_ns = self.last_ns = 0
        self.typed = True
        self.entries = len(dump.entries)
        self.first_record = min((entry.record_id for entry in dump.entries), default=0)
        """Number of its oldest entry: as many had been overwritten, or were left out as no longer active."""
        self._signatures: dict[Any, int] = {}
        self._operations: dict[str, Operation] = {}
        self._sites = Sites()
        self._sizes = Sizes()
        self._numbers = 0
        self._batches = 0
        self._mute = _is_mute(dump.entries)
        self._read(dump.entries)
        newest_ns = max((event.start_ns for event in self.calls if isinstance(event, events.Call)), default=0)
        fresh = written_ns is not None and 0 <= written_ns - self.last_ns < FRESH_NS
        self.told_ns = written_ns if fresh and written_ns is not None else newest_ns
        """When the backend told how far it was: not known but for a file as young as its newest entry."""

    @property
    def paths(self) -> Iterator[events.Path]:
        """Yield the call sites."""
        return self._sites.records()

    def _read(self, entries: Sequence[Entry]) -> None:
        open_batches: dict[str, tuple[tuple[bool, int], list[tuple[int, Entry, Operation]]]] = {}
        for entry in entries:
            name, description = entry.process_group or (str(entry.pg_id or 0), "")
            op = self._operations.get(entry.profiling_name)
            if op is None:
                op = self._operations[entry.profiling_name] = operation(entry.profiling_name)
            p2p = op.p2p or bool(entry.is_p2p)
            key = (p2p, entry.p2p_seq_id if p2p else entry.seq)
            facts = self._facts(name, description, op, entry)
            facts.point_to_point |= p2p or entry.p2p_seq_id > 0
            self._numbers += 1
            known = open_batches.get(name)
            if known is not None and known[0] == key:
                known[1].append((self._numbers, entry, op))
                continue
            if known is not None:
                self._flush(self.groups[name], known[0], known[1])
            open_batches[name] = key, [(self._numbers, entry, op)]
        for name, (key, batch) in open_batches.items():
            self._flush(self.groups[name], key, batch)
        self.calls.sort(key=_number_of)

    def _facts(self, name: str, description: str, op: Operation, entry: Entry) -> GroupFacts:
        moment = entry.time_created_ns or 0
        if moment:
            self.first_ns = min(self.first_ns or moment, moment)
            self.last_ns = max(self.last_ns, moment, entry.time_discovered_completed_ns or 0)
        facts = self.groups.get(name)
        if facts is None:
            facts = self.groups[name] = GroupFacts(
                name=name, description=description, backend=op.backend, first_ns=moment, timeout_ms=entry.timeout_ms
            )
        if entry.pg_id is not None:
            facts.numbers.add(entry.pg_id)
        return facts

    # ---- calls ------------------------------------------------------------------------------------------------------
    def _flush(self, facts: GroupFacts, key: tuple[bool, int], batch: Sequence[tuple[int, Entry, Operation]]) -> None:
        p2p, seq = key
        *members, (_, last, closing) = batch
        terminator = last if members and closing.op.endswith(COALESCED) else None
        if p2p:
            self._messages(facts, seq, members if terminator else batch, terminator)
            return
        facts.last_seq = max(facts.last_seq, seq)
        number, first, op = batch[0]
        parts = [(each.op, self._sizes.of(entry)) for _, entry, each in (members if terminator else batch)]
        call = self._call(facts, number, first, op, seq, tuple(parts))
        self._end(facts, call, terminator or last, parts[0][0])

    def _messages(
        self,
        facts: GroupFacts,
        seq: int,
        batch: Sequence[tuple[int, Entry, Operation]],
        terminator: Entry | None,
    ) -> None:
        several = len(batch) > 1 or terminator is not None
        self._batches += several
        for number, entry, op in batch:
            if not op.p2p:  # the end of a batch whose messages the ring no longer holds
                continue
            parts = ((op.op, self._sizes.of(entry)),)
            call = self._call(facts, number, entry, op, seq, parts, coalesced=self._batches if several else None)
            self._end(facts, call, terminator or entry, op.op, p2p=True)

    def _call(
        self,
        facts: GroupFacts,
        number: int,
        entry: Entry,
        op: Operation,
        seq: int,
        parts: tuple[tuple[str, Tensors], ...],
        coalesced: int | None = None,
    ) -> events.Call:
        thread = _thread(entry.thread_name)
        path = self._sites.number(entry.frames)
        self.typed &= all(moved.dtype is not None or not (moved.inputs or moved.outputs) for _, moved in parts)
        key = (facts.name, entry.profiling_name, parts if len(parts) > 1 else id(parts[0][1]), path, thread)
        signature = self._signatures.get(key)
        if signature is None:
            self._signatures[key] = signature = len(self._signatures) + 1
            self.drafts.append(
                Drafted(number=signature, group=facts.name, parts=parts, operation=op, path=path, thread=thread)
            )
        call = events.Call(
            call=number,
            signature=signature,
            seq=seq,
            step=UNKNOWN_STEP,
            start_ns=entry.time_created_ns or 0,
            coalesced=coalesced,
        )
        self.calls.append(call)
        return call

    def _end(self, facts: GroupFacts, call: events.Call, entry: Entry, op: str, *, p2p: bool = False) -> None:
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
        elif entry.retired and not self._mute:
            self.calls.append(timed_out(call, entry.timeout_ms))
        if p2p:
            return
        if entry.state == "completed":
            facts.last_completed = max(facts.last_completed or 0, call.seq)
        if entry.state in ("started", "completed") and entry.time_discovered_started_ns:
            facts.last_started = max(facts.last_started or 0, call.seq)
        if self._mute:
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


def _number_of(event: events.Event) -> int:
    return event.call if isinstance(event, events.Call | events.Done) else 0


def _thread(name: str | None) -> str:
    return "MainThread" if not name or name.startswith(MAIN_THREADS) else name.rstrip("0123456789_")


def _duration_ns(duration_ms: float | None) -> int | None:
    if duration_ms is None or not math.isfinite(duration_ms) or not 0 <= duration_ms < 1e12:
        return None
    return round(duration_ms * MILLISECOND_NS)


def joined(drafted: Drafted) -> tuple[str, Tensors]:
    """Return op and tensors of a signature, coalesced collectives as one."""
    if len(drafted.parts) == 1:
        return drafted.parts[0]
    return together([op for op, _ in drafted.parts], [moved for _, moved in drafted.parts])
