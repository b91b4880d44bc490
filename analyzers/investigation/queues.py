"""Operations queued on devices: a host runs ahead, so what it has issued is not what its device has reached.

A device works off what its host issues, so a rank's device is at the rank's first unfinished operation, and whatever
stands behind it there is not the reason. Such a head waits for the members whose hosts have not issued the operation
and for those whose devices are still at an earlier one. A head that the peers have completed, and more after it, waits
for nobody: without that rank's device they could not have; it stopped in the middle.
"""

import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distdiag.analyzers.investigation.channels import Message, Messages
from distdiag.analyzers.investigation.lives import End, Life
from distdiag.analyzers.investigation.progress import Progress, place_codes
from distdiag.analyzers.investigation.rows import records, whole
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind
from distdiag.run import Run

GONE = (End.ORDERLY, End.HARD_EXIT)
DEVICE = "device"
"""Clock of an end that the device told."""
HOST = "cpu"
"""Operations on it hold the thread that issued them."""
DUMPS = "flight-recorder"
WHOLE_QUEUES = ("distdiag", DUMPS)
"""Sources that tell all operations; a printed line tells of one."""
FREE_RUNNING = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Ops that some members may complete although the devices of others never came."""
BEHIND = 2
"""Logs of different ranks end at different moments, so one operation fewer may be no more than an older log."""
BRIEF_NS = 3_000_000_000
"""A device that is behind for less is on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The operation that one rank's device is at."""

    rank: int
    call: int
    group: str
    seq: int
    op: str
    p2p: bool
    members: tuple[int, ...]
    since_ns: int
    given_up_ns: int | None
    """When it failed, where it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """A device that stopped in an operation which its peers completed."""

    head: Head
    completed_by: tuple[int, ...]
    behind: int
    """How many collectives of the group the peers completed that this rank did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Where the devices of all ranks are."""

    heads: Mapping[int, Head]
    halted: tuple[Halted, ...]
    waits: tuple[Wait, ...]
    unequal: tuple[tuple[Message, Message], ...] = ()
    """Both halves of messages at which devices are, where they are not of one size."""


_masks: weakref.WeakKeyDictionary[Run, npt.NDArray[np.bool_]] = weakref.WeakKeyDictionary()


def is_queued(run: Run) -> npt.NDArray[np.bool_]:
    """Return which calls run on a device and leave their thread free, as far as their ends are told at all."""
    known = _masks.get(run)
    if known is None:
        known = _masks[run] = _queued(run)
    return known


def _queued(run: Run) -> npt.NDArray[np.bool_]:
    calls = run.calls
    on_device = np.asarray((calls["device"] != HOST) & ~calls["captured"])
    if not on_device.any():
        return on_device
    ranks = calls["rank"].to_numpy()
    places = place_codes(calls)
    ended = on_device & calls["end_ns"].notna().to_numpy() & ~calls["failed"].to_numpy()
    # Where recording sees no end in a whole group, none is seen at its head either, unless the device tells of ends.
    seeing = _ranks_from(run, DUMPS) | set(np.unique(ranks[ended & (calls["clock"] == DEVICE).to_numpy()]).tolist())
    told = np.isin(places, np.unique(places[ended])) | np.isin(ranks, list(seeing))
    return on_device & told & np.isin(ranks, list(_ranks_from(run, *WHOLE_QUEUES)))


def _ranks_from(run: Run, *sources: str) -> set[int]:
    headers = run.headers
    told = headers["source"].map(lambda source: bool(set(sources) & set(str(source).split("+"))))
    return set(headers[told]["rank"].tolist())


def queues_of(run: Run, lives: Mapping[int, Life]) -> Queues:
    """Return where the devices are, and whom each of them waits for."""
    queued = is_queued(run)
    progress = Progress(run, queued)
    unfinished = progress.unfinished()
    # A process that has ended waits for nobody, whatever it left behind in its queues.
    gone = [rank for rank, life in lives.items() if life.end in GONE and life.failed_ns is None]
    unfinished = unfinished[~unfinished["rank"].isin(gone)]
    if unfinished.empty:
        return Queues(heads={}, halted=(), waits=())
    first = unfinished.sort_values("call", kind="stable").drop_duplicates("rank")
    heads = {head.rank: head for head in map(_head, records(first))}
    passed = [found for head in heads.values() if (found := _passed(progress, head)) is not None]
    stopped = {each.head.rank: each for each in passed if _is_certain(lives, progress, each)}
    messages = Messages(run.calls, queued, unfinished, {rank: head.call for rank, head in heads.items()})
    waits = (
        *_collectives(run, progress, heads, stopped.keys()),
        *_messages(run, messages, heads, stopped.keys()),
    )
    awaited = {rank for wait in waits for rank in wait.behind}
    stopped |= {each.head.rank: each for each in passed if each.head.rank in awaited and _is_old(lives, each.head)}
    halted = tuple(stopped[rank] for rank in sorted(stopped))
    return Queues(heads=heads, halted=halted, waits=waits, unequal=messages.unequal())


def _head(row: Any) -> Head:
    return Head(
        rank=int(row.rank),
        call=int(row.call),
        group=str(row.group_key),
        seq=int(row.seq),
        op=str(row.op),
        p2p=bool(row.p2p),
        members=row.members or (),
        since_ns=int(row.start_ns),
        given_up_ns=whole(row.end_ns) if row.failed else None,
    )


def _passed(progress: Progress, head: Head) -> Halted | None:
    """Return a head that peers went past."""
    if head.p2p or head.op in FREE_RUNNING:
        return None
    completed = {peer: done for peer, done in progress.beyond(head.group, head.seq).items() if peer != head.rank}
    if not completed:
        return None
    behind = max(completed.values()) - head.seq + 1
    return Halted(head=head, completed_by=tuple(sorted(completed)), behind=behind)


def _is_certain(lives: Mapping[int, Life], progress: Progress, passed: Halted) -> bool:
    """Return whether peers went past a head by more than their logs may differ."""
    head = passed.head
    if passed.behind >= BEHIND:
        return _is_old(lives, head)
    end_ns = progress.ended_ns(head.group, head.seq)
    return end_ns is not None and lives[head.rank].last_ns - end_ns >= BRIEF_NS


def _is_old(lives: Mapping[int, Life], head: Head) -> bool:
    return lives[head.rank].watched_ns - head.since_ns >= BRIEF_NS


def _collectives(run: Run, progress: Progress, heads: Mapping[int, Head], stuck: Collection[int]) -> Iterator[Wait]:
    at: dict[tuple[str, int], list[Head]] = {}
    for head in heads.values():
        if not head.p2p and head.rank not in stuck:
            at.setdefault((head.group, head.seq), []).append(head)
    logged = frozenset(run.ranks)
    for (group, seq), waiting in sorted(at.items()):
        members = waiting[0].members
        done = [peer for peer in members if (progress.completed(group, peer) or 0) >= seq]
        if done and waiting[0].op not in FREE_RUNNING:
            continue  # some logs are newer than others
        left = [(head.given_up_ns, head.since_ns) for head in waiting if head.given_up_ns is not None]
        given_up_ns, begun_ns = min(left, default=(None, 0))
        waiters = frozenset(head.rank for head in waiting)
        came = {peer: progress.issued(group, peer, seq, given_up_ns) for peer in members}
        absent = {peer for peer in members if came[peer] is False or (came[peer] and peer not in waiters)}
        unknown = {peer for peer in members if came[peer] is None}
        yield Wait(
            kind=WaitKind.COLLECTIVE,
            group=group,
            number=seq,
            waiters=waiters,
            absent=(frozenset(absent) & logged) - set(done),
            behind=frozenset(peer for peer in absent if came[peer]) - set(done),
            unknown=(frozenset(unknown) | (frozenset(members) - logged)) - set(done) - waiters,
            since_ns=min(head.since_ns for head in waiting),
            given_up_ns=given_up_ns,
            waited_ns=None if given_up_ns is None else given_up_ns - begun_ns,
        )


def _messages(run: Run, messages: Messages, heads: Mapping[int, Head], stuck: Collection[int]) -> Iterator[Wait]:
    logged = frozenset(run.ranks)
    for message in messages.at_head:
        if message.rank in stuck:
            continue
        partner, other = message.partner, messages.other_half(message)
        absent = frozenset() if partner is None or _is_there(other, heads) else frozenset({partner})
        yield Wait(
            kind=WaitKind.POINT_TO_POINT,
            group=message.group,
            number=message.seq,
            waiters=frozenset({message.rank}),
            absent=absent & logged,
            behind=absent if other is not None else frozenset(),
            unknown=absent - logged,
            since_ns=message.start_ns,
            given_up_ns=message.given_up_ns,
            waited_ns=None if message.given_up_ns is None else message.given_up_ns - message.start_ns,
            any_of=partner is None,
        )


def _is_there(other: Message | None, heads: Mapping[int, Head]) -> bool:
    """Return whether the device of the other half of a message is at it, or past it."""
    if other is None:
        return False
    head = heads.get(other.rank)
    return head is None or head.call >= other.first_of_batch
