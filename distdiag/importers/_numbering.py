"""Numbers of operations where a dump does not count them by process group.

The recorder of torchcomms has the form of PyTorch's, but one counter for all communicators and messages of a process,
and it says that an operation ended by no longer watching it: its state may read ``completed`` before, as the event
that would tell is recorded last, or ``scheduled`` for ever.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from distdiag.importers._entries import Entry
from distdiag.importers._pickles import RefusedError

_MESSAGES = ("send", "recv")
_UNSPACED = re.compile(r"\[?\d+,\d[\d,]*\]?")
"""PyTorch puts a blank behind each comma of a group's ranks, torchcomms does not."""
_MILLISECOND_NS = 1_000_000


def is_of_communicators(configs: Any) -> bool:
    """Return whether torchcomms wrote a dump, by how it tells who is in a group."""
    told = configs.values() if isinstance(configs, dict) else ()
    ranks = [each.get("ranks") for each in told if isinstance(each, dict)]
    return any(isinstance(each, str) and _UNSPACED.fullmatch(each) is not None for each in ranks)


def of_communicators(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries of a dump of torchcomms as PyTorch would have written them.

    Raises ``RefusedError`` where the number that an operation has in its group cannot be told.
    """
    ended = [_ended(entry) for entry in entries]
    alone = len({entry.process_group for entry in entries}) < 2 and not any(map(_is_message, entries))
    if alone and all(entry.seq is not None for entry in entries):
        return tuple(replace(entry, collective_seq_id=(entry.seq or 0) + 1) for entry in ended)
    return counted(ended)


def counted(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return entries with the numbers that they have in their groups, messages apart.

    Raises ``RefusedError`` where older ones are missing: nobody knows how many those were.
    """
    if [entry.record_id for entry in entries] != list(range(len(entries))):
        raise RefusedError("its entries are not numbered by group, and the oldest are missing")
    return tuple(_counted(entries))


def _counted(entries: Sequence[Entry]) -> Iterator[Entry]:
    counts: dict[object, int] = {}
    for entry in entries:
        group = entry.process_group or entry.pg_id
        message = _is_message(entry)
        key = group, message
        counts[key] = counts.get(key, 0) + 1
        collectives, messages = counts.get((group, False), 0), counts.get((group, True), 0)
        yield replace(entry, collective_seq_id=collectives, p2p_seq_id=messages if message else 0, is_p2p=message)


def _is_message(entry: Entry) -> bool:
    return bool(entry.is_p2p) or entry.profiling_name.rpartition(":")[2].startswith(_MESSAGES)


def _ended(entry: Entry) -> Entry:
    """Return an entry whose state says that it ended where it is no longer watched, and that it did not elsewhere."""
    if not entry.retired:
        state = "started" if entry.time_discovered_started_ns else "scheduled"
        return replace(entry, state=state, time_discovered_completed_ns=None)
    if entry.time_discovered_completed_ns or entry.time_created_ns is None:
        return replace(entry, state="completed")
    duration = entry.duration_ms or 0.0
    end_ns = entry.time_created_ns + int(min(max(duration, 0.0), 1e9) * _MILLISECOND_NS)
    return replace(entry, state="completed", time_discovered_completed_ns=end_ns)
