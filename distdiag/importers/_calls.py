"""The entries of one dump as rows of calls and of their ends.

Collectives that were coalesced share one sequence number and become one call; messages of one batch stay calls of
their own. The last entry of a batch alone says whether it completed: its members read ``scheduled`` for ever. A call
is thus told by two entries, the one that issued it and the one that closes it, which most often are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distdiag import events
from distdiag.importers._entries import Entry
from distdiag.importers._kinds import Kinds, Undecided
from distdiag.importers._operations import COALESCED
from distdiag.run.held import Rows

UNKNOWN_STEP = -1
MILLISECOND_NS = 1_000_000
DEFAULT_TIMEOUT_MS = 600_000
LONGEST_TIMEOUT_MS = 1 << 40
LONGEST_DURATION_MS = 1e12
_LATEST = (1 << 63) - 1
CLOCKS = ("unknown", "poll")
MESSAGES = ("send", "recv", "recv_any_source")

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls:
    """The calls of a dump and how they ended."""

    calls: Rows
    dones: Rows
    first_ns: int
    """When the oldest entry was made, 0 where none tells it."""
    last_ns: int
    """The newest moment that any tells."""
    newest_ns: int
    """When the newest call was issued, 0 without any."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Issued:
    """Calls in the making: a row each."""

    entry: Integers
    """Position of the entry that issued it."""
    closing: Integers
    """Position of the entry that says how it ended."""
    kind: Integers
    signature: Integers
    seq: Integers
    batch: Integers
    """Number of the batch of messages it is in, 0 for none."""


def calls_of(entries: Sequence[Entry], kinds: Kinds, *, mute: bool) -> Calls:
    """Return the calls of all entries; the groups of ``kinds`` learn how far they got.

    ``mute`` is a backend that never says that an operation completed.
    """
    kind = _integers(kinds.of(entries))
    if not len(kind):
        return Calls(
            calls=_calls_rows(kind, kind, kind, kind, kind), dones=_no_ends(), first_ns=0, last_ns=0, newest_ns=0
        )
    issued = _issued(entries, kinds, kind)
    created = _integers([entry.time_created_ns or 0 for entry in entries])
    ended = _integers([entry.time_discovered_completed_ns or 0 for entry in entries])
    completed = _booleans([entry.state == "completed" for entry in entries])
    start = created[issued.entry]
    _ends_learnt(entries, kinds, issued, start, completed, mute=mute)
    return Calls(
        calls=_calls_rows(issued.entry + 1, issued.signature, issued.seq, start, issued.batch),
        dones=_dones(entries, issued, start, completed, ended, mute=mute),
        first_ns=int(created[created > 0].min(initial=_LATEST)) % _LATEST,
        last_ns=int(max(created.max(), ended.max())),
        newest_ns=int(start.max(initial=0)),
    )


def _issued(entries: Sequence[Entry], kinds: Kinds, kind: Integers) -> _Issued:
    seq = _integers([e.collective_seq_id if e.collective_seq_id is not None else e.seq_id or 0 for e in entries])
    message_seq = _integers([entry.p2p_seq_id for entry in entries])
    group = _integers([each.facts.number for each in kinds.all])[kind]
    p2p = _booleans([each.p2p for each in kinds.all])[kind]
    order = np.argsort(group, kind="stable")
    # Negative numbers are those of messages, which are counted apart.
    key, of_group = np.where(p2p, ~message_seq, seq)[order], group[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (key[1:] != key[:-1]) | (of_group[1:] != of_group[:-1])
    batch = np.cumsum(begins) - 1
    starts = np.flatnonzero(begins)
    first, last = order[starts], order[np.append(starts[1:], len(order)) - 1]
    several = first != last
    terminated = several & _booleans([each.operation.op.endswith(COALESCED) for each in kinds.all])[kind[last]]
    _positions_learnt(kinds, group[first], p2p[first], message_seq[last], seq[first])
    collective = np.flatnonzero(~p2p[first])
    # Of messages every member is a call, but for what only ends a batch, also where the ring no longer holds the rest.
    member = p2p[first][batch] & _booleans([each.operation.p2p for each in kinds.all])[kind[order]]
    member &= ~(terminated[batch] & (order == last[batch]))
    message, of_batch = order[member], batch[member]
    numbers = np.cumsum(several & p2p[first])
    entry = np.concatenate((first[collective], message))
    return _Issued(
        entry=entry,
        closing=np.concatenate((last[collective], np.where(terminated[of_batch], last[of_batch], message))),
        kind=kind[entry],
        signature=_signatures(kinds, kind, order, starts, terminated, collective, message),
        seq=np.concatenate((seq[first[collective]], message_seq[message])),
        batch=np.concatenate((np.zeros(len(collective), dtype=np.int64), np.where(several, numbers, 0)[of_batch])),
    )


def _signatures(
    kinds: Kinds,
    kind: Integers,
    order: Integers,
    starts: Integers,
    terminated: Booleans,
    collective: Integers,
    message: Integers,
) -> Integers:
    """Return the number of the signature of each call: of its kind, or of all kinds that were coalesced into it."""
    counts = np.diff(np.append(starts, len(order))) - terminated
    alone = np.concatenate((counts[collective] == 1, np.ones(len(message), dtype=bool)))
    of_call = kind[np.concatenate((order[starts[collective]], message))]
    table = np.zeros(len(kinds.all), dtype=np.int64)
    for number in np.unique(of_call[alone]).tolist():
        table[number] = kinds.signature([kinds.all[number]])
    signature = table[of_call]
    for place in np.flatnonzero(~alone).tolist():
        begin = int(starts[collective[place]])
        members = kind[order[begin : begin + int(counts[collective[place]])]]
        signature[place] = kinds.signature([kinds.all[number] for number in members.tolist()])
    return signature


def _positions_learnt(kinds: Kinds, group: Integers, p2p: Booleans, message_seq: Integers, seq: Integers) -> None:
    """Tell the groups which of them have messages, and their newest collective."""
    messages = np.zeros(len(kinds.groups), dtype=bool)
    messages[group[p2p | (message_seq > 0)]] = True
    newest = _largest(group[~p2p], seq[~p2p], len(kinds.groups))
    for facts in kinds.groups.values():
        facts.point_to_point = bool(messages[facts.number])
        facts.last_seq = max(0, int(newest[facts.number]))


def _ends_learnt(
    entries: Sequence[Entry], kinds: Kinds, issued: _Issued, start: Integers, completed: Booleans, *, mute: bool
) -> None:
    """Tell the groups how far their collectives got."""
    collective = _booleans([each.operation.op not in MESSAGES for each in kinds.all])[issued.kind]
    group = _integers([each.facts.number for each in kinds.all])[issued.kind]
    ended = completed[issued.closing] & collective
    started = [bool(entry.time_discovered_started_ns) and entry.state != "scheduled" for entry in entries]
    begun = _booleans(started)[issued.closing] & collective
    last_completed = _largest(group[ended], issued.seq[ended], len(kinds.groups))
    last_started = _largest(group[begun], issued.seq[begun], len(kinds.groups))
    for facts in kinds.groups.values():
        facts.last_completed = _known(last_completed[facts.number])
        facts.last_started = _known(last_started[facts.number])
    for row in np.flatnonzero(collective).tolist() if mute else ():
        kind = kinds.all[int(issued.kind[row])]
        kind.facts.undecided.append(
            Undecided(
                call=int(issued.entry[row]) + 1,
                seq=int(issued.seq[row]),
                start_ns=int(start[row]),
                op=kind.operation.op,
                watched=not entries[int(issued.closing[row])].retired,
            )
        )


def _dones(
    entries: Sequence[Entry],
    issued: _Issued,
    start: Integers,
    completed: Booleans,
    ended: Integers,
    *,
    mute: bool,
) -> Rows:
    """Return the ends that the dump tells."""
    well = completed[issued.closing]
    rows = np.flatnonzero(well)
    closing = issued.closing[rows]
    duration, unknown = _durations([entry.duration_ms for entry in entries])
    dones = _ends_rows(issued.entry[rows] + 1, ended[closing], start[rows], duration[closing], unknown[closing])
    if mute:
        return dones
    retired = _booleans([entry.retired for entry in entries])[issued.closing]
    failures = [
        timed_out(int(issued.entry[row]) + 1, int(start[row]), entries[int(issued.closing[row])].timeout_ms)
        for row in np.flatnonzero(retired & ~well).tolist()
    ]
    return with_ends(dones, failures)


def timed_out(call: int, start_ns: int, timeout_ms: int | None, why: str = "") -> events.Done:
    """Return the end of a call that was given up."""
    allowed = DEFAULT_TIMEOUT_MS if timeout_ms is None else min(timeout_ms, LONGEST_TIMEOUT_MS)
    return events.Done(
        call=call,
        end_ns=start_ns + allowed * MILLISECOND_NS,
        clock="unknown",
        failed=True,
        error=f"timed out{why}: given up without having completed",
    )


def with_ends(dones: Rows, more: Sequence[events.Done]) -> Rows:
    """Return ends with a few more."""
    if not more:
        return dones
    added: dict[str, Any] = {
        "call": _integers([each.call for each in more]),
        "end_ns": _integers([each.end_ns for each in more]),
        "duration_ns": _integers([each.duration_ns or 0 for each in more]),
        "failed": _booleans([each.failed for each in more]),
    }
    return Rows(
        kind=events.Done,
        numbers={name: np.concatenate((column, added[name])) for name, column in dones.numbers.items()},
        gaps={
            "duration_ns": np.append(dones.gaps["duration_ns"], [each.duration_ns is None for each in more]),
        },
        texts={
            "clock": _longer(dones.texts["clock"], [each.clock for each in more]),
            "error": _longer(dones.texts["error"], [each.error for each in more]),
        },
    )


def _calls_rows(number: Integers, signature: Integers, seq: Integers, start: Integers, batch: Integers) -> Rows:
    return Rows(
        kind=events.Call,
        numbers={
            "call": number,
            "signature": signature,
            "seq": seq,
            "step": np.full(len(number), UNKNOWN_STEP, dtype=np.int64),
            "start_ns": start,
            "coalesced": batch,
        },
        gaps={"coalesced": batch == 0},
        texts={},
    )


def _ends_rows(number: Integers, seen: Integers, start: Integers, duration: Integers, unknown: Booleans) -> Rows:
    """Return the rows of calls that ended well, as somebody saw (0: nobody did)."""
    return Rows(
        kind=events.Done,
        numbers={
            "call": number,
            "end_ns": np.maximum(seen, start),
            "duration_ns": duration,
            "failed": np.zeros(len(number), dtype=bool),
        },
        gaps={"duration_ns": unknown},
        texts={
            "clock": ((seen > 0).astype(np.int64), CLOCKS),
            "error": (np.full(len(number), -1, dtype=np.int64), ()),
        },
    )


def _no_ends() -> Rows:
    none = np.zeros(0, dtype=np.int64)
    return _ends_rows(none, none, none, none, none.astype(bool))


def _longer(column: tuple[Integers, tuple[str, ...]], more: Sequence[str | None]) -> tuple[Integers, tuple[str, ...]]:
    """Return a column of texts with more of them."""
    codes, texts = column
    known = {text: code for code, text in enumerate(texts)}
    added = [-1 if text is None else known.setdefault(text, len(known)) for text in more]
    return np.append(codes, _integers(added)), tuple(known)


def _durations(durations_ms: Sequence[float | None]) -> tuple[Integers, Booleans]:
    """Return nanoseconds, and where they are not known."""
    duration = np.array([np.nan if each is None else each for each in durations_ms], dtype=np.float64)
    unknown = ~(np.isfinite(duration) & (duration >= 0) & (duration < LONGEST_DURATION_MS))
    return np.rint(np.where(unknown, 0, duration) * MILLISECOND_NS).astype(np.int64), unknown


def _largest(group: Integers, values: Integers, groups: int) -> Integers:
    """Return the largest value of each group, -1 where it has none."""
    largest = np.full(groups, -1, dtype=np.int64)
    np.maximum.at(largest, group, values)
    return largest


def _known(value: np.int64) -> int | None:
    return None if value < 0 else int(value)


def _integers(values: Sequence[int]) -> Integers:
    return np.array(values, dtype=np.int64)


def _booleans(values: Sequence[bool]) -> Booleans:
    return np.array(values, dtype=bool)
