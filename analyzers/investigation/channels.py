"""Messages between two ranks on a device: which send belongs to which receive.

They are matched in order between the same two ranks on one group with one tag. Where the beginning of that order is
lost, as in a ring, the first unfinished ones of both sides are taken to belong together: what is finished, is so on
both.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers.investigation.rows import records, whole

COLUMNS = (
    "rank",
    "call",
    "group_key",
    "seq",
    "op",
    "peer",
    "tag",
    "coalesced",
    "start_ns",
    "end_ns",
    "failed",
    "numel",
)
ANY_SOURCE = "recv_any_source"
SEND = "send"
_RANK_BITS = 20
_GROUP_SHIFT = 2 * _RANK_BITS
_TAG_MIX = 1_000_003


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One half of a message."""

    rank: int
    call: int
    first_of_batch: int
    """The first call of the batch that it was coalesced with, which runs as one."""
    group: str
    seq: int
    sends: bool
    partner: int | None
    """None for any."""
    channel: int
    number: int
    """In its channel; counted from the first unfinished one where the beginning is lost."""
    start_ns: int
    given_up_ns: int | None
    numel: int


class Messages:
    """The messages that belong to the operations at which devices are."""

    def __init__(
        self, calls: pd.DataFrame, queued: npt.NDArray[np.bool_], unfinished: pd.DataFrame, heads: Mapping[int, int]
    ) -> None:
        """Take the calls and which of them run on devices, the unfinished ones, and the call at which each rank is."""
        open_rows = with_batches(unfinished[unfinished["p2p"].to_numpy()])
        self._open = set(zip(open_rows["rank"].tolist(), open_rows["call"].tolist(), strict=True))
        at_head = open_rows[_is_at_head(open_rows, heads)]
        self.at_head: tuple[Message, ...] = ()
        self._halves: dict[tuple[int, bool, int], Message] = {}
        if at_head.empty:
            return
        rows = calls.loc[queued & calls["p2p"].to_numpy(), list(COLUMNS)]
        self._takes_any = set(rows[rows["op"] == ANY_SOURCE]["rank"].tolist())
        self._firsts = rows.groupby(["group_key", "rank"], observed=True)["seq"].min()
        relevant = with_batches(rows[np.isin(_channels(rows), np.unique(_channels(at_head)))])
        by_call: dict[tuple[int, int], Message] = {}
        for half in self._numbered(relevant):
            self._halves[half.channel, half.sends, half.number] = half
            by_call[half.rank, half.call] = half
        keys = zip(at_head["rank"].tolist(), at_head["call"].tolist(), strict=True)
        self.at_head = tuple(by_call[key] for key in keys)

    def other_half(self, message: Message) -> Message | None:
        """Return the send of a receive, or the receive of a send, where it was issued before the others gave up."""
        other = self._halves.get((message.channel, not message.sends, message.number))
        if other is None or (message.given_up_ns is not None and other.start_ns > message.given_up_ns):
            return None
        return other

    def unequal(self) -> tuple[tuple[Message, Message], ...]:
        """Return the messages at which devices are whose two halves are not of one size."""
        pairs = ((here, there) for here in self.at_head if (there := self.other_half(here)) is not None)
        return tuple((here, there) for here, there in pairs if here.numel != there.numel)

    def _numbered(self, rows: pd.DataFrame) -> Iterator[Message]:
        channels = _channels(rows)
        sides: dict[tuple[int, bool], list[Any]] = {}
        for channel, row in zip(channels.tolist(), records(rows), strict=True):
            sides.setdefault((channel, row.op == SEND), []).append(row)
        for (channel, sends), side in sides.items():
            other = sides.get((channel, not sends), [])
            start = 0 if self._from_the_start(side) and self._from_the_start(other) else self._finished(side)
            for position, row in enumerate(side):
                yield self._message(row, channel, sends, position - start)

    def _from_the_start(self, side: list[Any]) -> bool:
        return not side or int(self._firsts[(side[0].group_key, side[0].rank)]) <= 1

    def _finished(self, side: list[Any]) -> int:
        return next((n for n, row in enumerate(side) if (row.rank, row.call) in self._open), len(side))

    def _message(self, row: Any, channel: int, sends: bool, number: int) -> Message:
        peer = whole(row.peer)
        uncertain = row.op == ANY_SOURCE or (sends and peer in self._takes_any)
        return Message(
            rank=int(row.rank),
            call=int(row.call),
            first_of_batch=int(row.first_of_batch),
            group=str(row.group_key),
            seq=int(row.seq),
            sends=sends,
            partner=None if uncertain else peer,
            channel=channel,
            number=number,
            start_ns=int(row.start_ns),
            given_up_ns=whole(row.end_ns) if row.failed else None,
            numel=int(row.numel),
        )


def with_batches(calls: pd.DataFrame) -> pd.DataFrame:
    """Return calls with the first call of the batch that each belongs to."""
    firsts = calls["call"].copy()
    several = calls[calls["coalesced"].notna()]
    if len(several):
        firsts.loc[several.index] = several.groupby(["rank", "coalesced"])["call"].transform("min")
    return calls.assign(first_of_batch=firsts)


def _is_at_head(rows: pd.DataFrame, heads: Mapping[int, int]) -> npt.NDArray[np.bool_]:
    at = rows["rank"].map(heads).to_numpy()
    return np.asarray((rows["call"].to_numpy() == at) | (rows["first_of_batch"].to_numpy() == at))


def _channels(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return a number for each that is the same on both sides of a channel."""
    ranks = rows["rank"].to_numpy(dtype=np.int64)
    peers = rows["peer"].fillna(-1).to_numpy(dtype=np.int64)
    sends = (rows["op"] == SEND).to_numpy()
    sources, destinations = np.where(sends, ranks, peers), np.where(sends, peers, ranks)
    groups = rows["group_key"].cat.codes.to_numpy().astype(np.int64)
    tags = rows["tag"].fillna(0).to_numpy(dtype=np.int64)
    return np.asarray((groups << _GROUP_SHIFT) + (sources << _RANK_BITS) + destinations + tags * _TAG_MIX)
