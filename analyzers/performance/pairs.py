"""Messages as calls of pairs: their two sides get one group and one number, as members of a collective have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdiag.deferred import deferred

if TYPE_CHECKING:
    import ibis
else:
    ibis = deferred("ibis")

_ALONE = 1 << 40
"""Keys of messages whose other side nobody knows lie beyond those of all pairs."""


def paired(calls: ibis.Table, world: int, *, messages: bool) -> ibis.Table:
    """Give each message the pair of its sender and receiver as group, and its number between them.

    The counter of c10d counts sends and receives of a process together, so that it differs between the two sides.
    Where there are no ``messages`` nothing has to be counted.
    """
    if not messages:
        return calls.filter(calls.own_thread).drop("peer", "receives", "own_thread")
    source = ibis.ifelse(calls.receives, calls.peer, calls["rank"])
    target = ibis.ifelse(calls.receives, calls["rank"], calls.peer)
    pair = calls.group * world * world + source * world + target + 1
    key = ibis.ifelse(calls.peer < 0, calls["rank"] + _ALONE, pair)
    calls = calls.mutate(key=ibis.ifelse(calls.p2p, -key, calls.group))
    number = ibis.row_number().over(ibis.window(group_by=["rank", "key", "p2p"], order_by="call"))
    seq = ibis.ifelse(calls.p2p, number, calls.seq)
    return calls.filter(calls.own_thread).mutate(group=calls.key, seq=seq).drop("key", "peer", "receives", "own_thread")
