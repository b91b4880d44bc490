"""Messages whose other side did not come, or came when the first had given up."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from distdiag.analyzers.investigation.lives import NEVER_NS, SECOND_NS
from distdiag.analyzers.investigation.rows import records, whole
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind
from distdiag.run import Run

COLUMNS = ("rank", "call", "op", "group_key", "peer", "tag", "start_ns", "end_ns", "failed")
ANY_SOURCE = "recv_any_source"
SENDS = frozenset({"send"})
WHOLE_TIMEOUT = 0.9
"""A wait that lasted this share of its timeout ended because of it, not because a connection broke."""
LAST_MOMENTS = 0.2
"""Share of a timeout, at its end, in which coming is coming too late: what is left may not do for the operation."""
LAST_MOMENTS_AT_MOST_NS = 10 * SECOND_NS
"""Any collective that works ends within so long, whatever the timeout."""


def message_waits(run: Run, blocked: pd.DataFrame) -> Iterator[Wait]:
    """Yield the messages that ranks were blocked in, each with the partner that did not come."""
    if blocked.empty:
        return
    calls = run.calls.loc[run.calls["p2p"] & ~run.calls["captured"], list(COLUMNS)]
    halves = numbered(calls)
    mine = halves.loc[blocked.index]
    others = _other_halves(halves, mine)
    timeouts = _timeouts(run)
    logged = frozenset(run.ranks).difference(run.quality.cut_ranks)
    takes_any = set(calls.loc[calls["op"] == ANY_SOURCE, "rank"].unique().tolist())
    for row, half in zip(records(blocked), records(mine), strict=True):
        rank, group = int(row.rank), str(row.group_key)
        name = group.partition("[")[0]
        partner = None if half.channel < 0 else int(row.peer)
        other = others.get((half.channel, half.number, not half.sends))
        given_up_ns = whole(row.end_ns) if row.failed else None
        if partner is not None and other is not None and other.failed and whole(other.end_ns) is not None:
            left_ns = deadline_ns(timeouts.get((name, partner)), int(other.start_ns), int(other.end_ns))
            if _came_too_late(run, row, left_ns):
                continue
        came = None if other is None else int(other.start_ns)
        missing = came is None or (
            given_up_ns is not None and came > deadline_ns(timeouts.get((name, rank)), int(row.start_ns), given_up_ns)
        )
        absent = frozenset() if partner is None or not missing else frozenset({partner})
        uncertain = partner is None or (half.sends and partner in takes_any)
        yield Wait(
            kind=WaitKind.POINT_TO_POINT,
            group=group,
            number=int(row.seq),
            waiters=frozenset({rank}),
            absent=frozenset() if uncertain else absent & logged,
            unknown=absent - logged,
            since_ns=int(row.start_ns),
            given_up_ns=given_up_ns,
            waited_ns=None if given_up_ns is None else given_up_ns - int(row.start_ns),
            any_of=uncertain,
            arrived_ns=came if missing else None,
        )


def numbered(calls: pd.DataFrame) -> pd.DataFrame:
    """Return of each message its channel, its number on it, and whether it sends; a channel of -1 is not known.

    Messages are matched in order between the same two ranks on one group with one tag.
    """
    sends, known = calls["op"].isin(SENDS), calls["peer"].notna() & (calls["op"] != ANY_SOURCE)
    peers = calls["peer"].fillna(-1).astype("int64")
    ways = pd.DataFrame(
        {
            "group": calls["group_key"].cat.codes,
            "source": calls["rank"].where(sends, peers),
            "destination": peers.where(sends, calls["rank"]),
            "tag": calls["tag"].fillna(0).astype("int64"),
        }
    )
    channels = ways.groupby(list(ways.columns), sort=False).ngroup().where(known, -1)
    halves = calls[["start_ns", "end_ns", "failed"]].assign(channel=channels, sends=sends)
    return halves.assign(number=halves.groupby(["channel", "sends"], sort=False).cumcount())


def _other_halves(halves: pd.DataFrame, mine: pd.DataFrame) -> dict[tuple[int, int, bool], Any]:
    """Return the messages that may be the other half of some, by channel, number and whether they send."""
    found = halves[halves["channel"].isin(mine["channel"]) & halves["number"].isin(mine["number"])]
    found = found[found["channel"] >= 0]
    return {(half.channel, half.number, half.sends): half for half in records(found)}


def _timeouts(run: Run) -> dict[tuple[str, int], float]:
    """Return the timeout of each group on each rank, by the group's name."""
    known = run.groups[run.groups["timeout_seconds"].notna()]
    return dict(
        zip(zip(known["group"].astype(str), known["rank"].tolist(), strict=True), known["timeout_seconds"], strict=True)
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


def deadline_ns(timeout_seconds: float | None, since_ns: int, given_up_ns: int) -> int:
    """Return until when a rank could come in time: a timeout expires a while before its error is seen and recorded.

    Both moments are of one waiter, by its own clock. A wait that was shorter than its timeout gave up for another
    reason: until that moment.
    """
    timeout_ns = NEVER_NS if timeout_seconds is None or math.isnan(timeout_seconds) else timeout_seconds * SECOND_NS
    if given_up_ns - since_ns < WHOLE_TIMEOUT * timeout_ns:
        return given_up_ns
    moments_ns = min(LAST_MOMENTS * timeout_ns, LAST_MOMENTS_AT_MOST_NS)
    return min(given_up_ns, since_ns + int(timeout_ns - moments_ns))
