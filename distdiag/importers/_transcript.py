"""What one dump tells of its process, as plain values and columns that one process can hand to another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distdiag.importers._calls import calls_of
from distdiag.importers._dumps import Dump
from distdiag.importers._entries import Entry
from distdiag.importers._kinds import Drafted, GroupFacts, Kinds
from distdiag.run.held import Rows

FRESH_NS = 3_000_000_000
"""A dump so young was made while its job ran; of an older one nobody knows how long after."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transcript:
    """The records that one dump becomes, as far as it knows them alone."""

    dump: Dump
    """Without its entries, which are a multiple of what they become."""
    rank: int
    calls: Rows
    dones: Rows
    paths: Sequence[tuple[str, ...]]
    """Call sites in the order of their numbers, from 1."""
    drafts: Sequence[Drafted]
    groups: Mapping[str, GroupFacts]
    typed: bool
    """Whether all operations that move something tell its type."""
    entries: int
    first_ns: int
    last_ns: int
    told_ns: int
    """When the backend told how far it was: not known but for a file as young as its newest entry."""


def transcribed(dump: Dump, rank: int, written_ns: int | None = None) -> Transcript:
    """Read all entries; raise ``RefusedError`` where they are beyond reason.

    ``written_ns`` is when the file was written, as its folder says; a copy is younger than the dump.
    """
    kinds = Kinds()
    read = calls_of(dump.entries, kinds, mute=_is_mute(dump.entries))
    fresh = written_ns is not None and 0 <= written_ns - read.last_ns < FRESH_NS
    return Transcript(
        dump=replace(dump, entries=()),
        rank=rank,
        calls=read.calls,
        dones=read.dones,
        paths=kinds.paths,
        drafts=kinds.drafts,
        groups=kinds.groups,
        typed=kinds.typed,
        entries=len(dump.entries),
        first_ns=read.first_ns,
        last_ns=read.last_ns,
        told_ns=written_ns if fresh and written_ns is not None else read.newest_ns,
    )


def _is_mute(entries: Sequence[Entry]) -> bool:
    """Return whether the backend never says that an operation completed, only that it is no longer watched."""
    if any(entry.state not in (None, "scheduled") for entry in entries):
        return False
    if any(entry.profiling_name.startswith("gloo:") for entry in entries):
        return True
    retired = [entry.process_group for entry in entries if entry.retired]
    return len(retired) > len(set(retired))
