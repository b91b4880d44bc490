"""Messages whose other side did not come, or came when the first had given up."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from distdiag.analyzers.investigation.deadlines import deadline_ns
from distdiag.analyzers.investigation.rows import records, whole
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind
from distdiag.run import Run

ANY_SOURCE = "recv_any_source"
SENDS = frozenset({"send"})


@dataclass(frozen=True, slots=True)
class _Channel:
    """Messages are matched in order between the same two ranks on one group with one tag."""

    group: str
    source: int
    destination: int
    tag: int


def message_waits(run: Run, blocked: pd.DataFrame) -> Iterator[Wait]:
    """Yield the messages that ranks were blocked in, each with the partner that did not come."""
    if blocked.empty:
        return
    calls = run.calls[run.calls["p2p"] & ~run.calls["captured"]]
    numbers = _numbered(calls)
    moments = (calls[name].tolist() for name in ("start_ns", "end_ns", "failed"))
    met = {
        (channel, number, sends): (start, None if end is pd.NA else end, failed)
        for (channel, number, sends), start, end, failed in zip(numbers.values(), *moments, strict=True)
        if channel is not None
    }
    logged = frozenset(run.ranks).difference(run.quality.cut_ranks)
    takes_any = {int(rank) for rank in calls[calls["op"] == ANY_SOURCE]["rank"]}
    for row in records(blocked):
        channel, number, sends = numbers[int(row.rank), int(row.call)]
        given_up_ns = whole(row.end_ns) if row.failed else None
        until_ns = None
        if given_up_ns is not None:
            until_ns = deadline_ns(run, str(row.group_key), (int(row.rank),), int(row.start_ns), given_up_ns)
        partner = None if channel is None else channel.destination if sends else channel.source
        came, left_ns, gave_up = met.get((channel, number, not sends), (None, None, False))
        if gave_up and came is not None and left_ns is not None and partner is not None:
            left_ns = deadline_ns(run, str(row.group_key), (partner,), came, left_ns)
            if _came_too_late(run, row, left_ns):
                continue
        missing = came is None or (until_ns is not None and came > until_ns)
        absent = frozenset() if partner is None or not missing else frozenset({partner})
        uncertain = partner is None or (sends and partner in takes_any)
        yield Wait(
            kind=WaitKind.POINT_TO_POINT,
            group=str(row.group_key),
            number=int(row.seq),
            waiters=frozenset({int(row.rank)}),
            absent=frozenset() if uncertain else absent & logged,
            unknown=absent - logged,
            since_ns=int(row.start_ns),
            given_up_ns=given_up_ns,
            any_of=uncertain,
            arrived_ns=came if missing else None,
        )


def message_arrival(run: Run, wait: Wait, partner: int) -> int | None:
    """Return when the other side of a message came, whenever that was; None where it never did."""
    calls = run.calls
    (rank,) = wait.waiters
    here = calls[(calls["group_key"] == wait.group).to_numpy() & calls["p2p"].to_numpy()]
    mine = here[(here["rank"] == rank) & (here["peer"] == partner)]
    call = mine[mine["seq"] == wait.number]
    if call.empty:
        return None
    sends, tag, number = call["op"].iloc[0] in SENDS, whole(call["tag"].iloc[0]) or 0, call["call"].iloc[0]
    alike = (mine["op"].isin(SENDS) == sends) & (mine["tag"].fillna(0) == tag) & (mine["call"] <= number)
    theirs = here[(here["rank"] == partner) & (here["peer"] == rank) & (here["tag"].fillna(0) == tag)]
    theirs = theirs[theirs["op"].isin(SENDS) != sends]
    position = int(alike.sum()) - 1
    return int(theirs["start_ns"].iloc[position]) if position < len(theirs) else None


def _came_too_late(run: Run, call: Any, left_ns: int) -> bool:
    """Return whether a call came when its partner had given up, with nobody else to blame for that.

    Whoever was held by a call itself when the partner left is late because of another one, which is not looked for.
    """
    if call.start_ns < left_ns:
        return False
    calls = run.calls
    mine = calls[(calls["rank"] == call.rank) & (calls["start_ns"] <= left_ns) & (calls["call"] != call.call)]
    return not bool((mine["end_ns"].isna() | (mine["end_ns"] > left_ns)).any())


def _numbered(calls: pd.DataFrame) -> dict[tuple[int, int], tuple[_Channel | None, int, bool]]:
    """Return per call its channel, its number on it and whether it sends."""
    counts: dict[tuple[_Channel, bool], int] = {}
    numbers: dict[tuple[int, int], tuple[_Channel | None, int, bool]] = {}
    for row in records(calls[["rank", "call", "op", "group_key", "peer", "tag"]]):
        sends = row.op in SENDS
        channel = None
        peer = whole(row.peer)
        if peer is not None and row.op != ANY_SOURCE:
            ends = (int(row.rank), peer) if sends else (peer, int(row.rank))
            channel = _Channel(str(row.group_key), *ends, whole(row.tag) or 0)
        number = 0
        if channel is not None:
            number = counts[channel, sends] = counts.get((channel, sends), 0) + 1
        numbers[int(row.rank), int(row.call)] = channel, number, sends
    return numbers
