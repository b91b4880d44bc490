"""Messages that do not fit the room that their receivers make for them.

Sends and receives are matched in order between the same two ranks on one group with one tag. Where recording saw that
order from its beginning, both halves of each message are known, and with them their sizes and types. What is larger
than its room cannot arrive. What is smaller, or of another type, does on some backends, and some programs mean it so;
it counts only where messages between the same two lines fitted before, or both types are of floating point.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from distdiag.analyzers._wording import counted
from distdiag.analyzers.investigation.issued import Issued, dims, issued
from distdiag.analyzers.investigation.joining import INIT
from distdiag.analyzers.investigation.message_waits import ANY_SOURCE, numbered
from distdiag.analyzers.investigation.rows import records
from distdiag.analyzers.investigation.sources import recorded
from distdiag.run import Run

FITTED_BEFORE = 2
"""So many messages between two lines that fitted show that the lines are meant for each other as they are."""
FLOATING = ("float", "bfloat", "half", "double")


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A message whose two halves are not alike."""

    key: str
    sender: Issued
    receiver: Issued
    of_type: bool
    """Whether it is its type that differs, and not its size."""
    larger: bool
    """Whether it is larger than its room."""
    fitted: int
    """Messages between the same lines that fitted before it."""
    changed: int | None
    """Which of the two ranks passes something else than before, where that is one of them."""

    @property
    def calls(self) -> dict[int, Issued]:
        """Return both halves by rank."""
        return {call.rank: call for call in (self.sender, self.receiver)}

    @property
    def seq(self) -> int:
        """Return the number of the receive among its rank's messages."""
        return self.receiver.seq

    @property
    def time_ns(self) -> int:
        """Return when both halves had been issued."""
        return max(self.sender.start_ns, self.receiver.start_ns)

    @property
    def said(self) -> str:
        """Return what each side passed."""
        sent, room = self.sender, self.receiver
        return (
            f"rank {sent.rank} sent {dims(sent.shapes)} {sent.dtype} to rank {room.rank}, "
            f"which made room for {dims(room.shapes)} {room.dtype}"
        )

    @property
    def before(self) -> str:
        """Return how it was before."""
        if not self.fitted:
            return "no message between these lines came before it"
        fitted = f"{counted(self.fitted, 'message')} between these lines fitted before"
        return fitted if self.changed is None else f"{fitted}; rank {self.changed} passes something else now"


def misfits(run: Run) -> Iterator[Misfit]:
    """Yield the first message of each pair of ranks that does not fit."""
    calls = run.calls
    known = _seen_from_the_start(run)
    mine = calls[calls["p2p"].to_numpy() & ~calls["captured"].to_numpy(dtype=bool) & calls["rank"].isin(known)]
    if mine.empty or len(mine[["size_bytes", "dtype"]].drop_duplicates()) < 2:
        return
    pairs = _pairs(mine)
    differ = (pairs["size_bytes"] != pairs["size_bytes_there"]) | (pairs["dtype"] != pairs["dtype_there"])
    for channel in pairs.loc[differ, "channel"].unique().tolist():
        found = _first(run, mine, list(records(pairs[pairs["channel"] == channel].sort_values("number"))))
        if found is not None:
            yield found


def _seen_from_the_start(run: Run) -> frozenset[int]:
    """Return the ranks that were recorded before they joined, and of whose messages none is lost."""
    joined = set(run.phases.loc[run.phases["phase"] == INIT, "rank"])
    calls = run.calls
    messages = calls[calls["p2p"].to_numpy()].groupby(["rank", "group_key"], observed=True)["seq"]
    bounds = messages.agg(["min", "max", "nunique"])
    whole = (bounds["min"] == 1) & (bounds["max"] == bounds["nunique"])
    lost = set(bounds.index[~whole].get_level_values("rank"))
    takes_any = set(calls.loc[calls["op"] == ANY_SOURCE, "rank"])
    return (recorded(run) & joined) - lost - takes_any


def _pairs(mine: pd.DataFrame) -> pd.DataFrame:
    """Return one row per message of which both halves are known, up to the first on its way that failed."""
    halves = numbered(mine).join(mine[["size_bytes", "dtype", "path", "thread"]])
    halves = halves[halves["channel"] >= 0]
    threads = halves.groupby(["channel", "sends"])["thread"].transform("nunique")
    halves = halves[threads == 1].reset_index(names="row")  # of several threads nothing tells whose comes first
    sends, receives = halves[halves["sends"]], halves[~halves["sends"]]
    pairs = sends.merge(receives, on=["channel", "number"], suffixes=("", "_there"))
    failed = pairs[pairs["failed"] | pairs["failed_there"]].groupby("channel")["number"].min()
    return pairs[~(pairs["number"] > pairs["channel"].map(failed))]


def _first(run: Run, mine: pd.DataFrame, pairs: Sequence[Any]) -> Misfit | None:
    fitted: dict[tuple[int, int], list[Any]] = {}
    for pair in pairs:
        lines = int(pair.path), int(pair.path_there)
        earlier = fitted.setdefault(lines, [])
        alike = pair.size_bytes == pair.size_bytes_there and pair.dtype == pair.dtype_there
        if alike:
            earlier.append(pair)
            continue
        sender, receiver = (issued(run, next(iter(records(mine.loc[[row]])))) for row in (pair.row, pair.row_there))
        of_type = pair.dtype != pair.dtype_there and (
            pair.size_bytes == pair.size_bytes_there or sender.shapes == receiver.shapes
        )
        larger = bool(pair.size_bytes > pair.size_bytes_there)
        if not larger and not _counts(pair, earlier, of_type=of_type):
            return None
        return Misfit(
            key=str(mine.loc[pair.row, "group_key"]),
            sender=sender,
            receiver=receiver,
            of_type=of_type,
            larger=larger,
            fitted=len(earlier),
            changed=_changed(pair, earlier, sender.rank, receiver.rank),
        )
    return None


def _counts(pair: Any, earlier: Sequence[Any], *, of_type: bool) -> bool:
    if len(earlier) >= FITTED_BEFORE and len({(each.size_bytes, each.dtype) for each in earlier}) == 1:
        return True
    return of_type and all(str(dtype).startswith(FLOATING) for dtype in (pair.dtype, pair.dtype_there))


def _changed(pair: Any, earlier: Sequence[Any], sender: int, receiver: int) -> int | None:
    usual = {(each.size_bytes, each.dtype) for each in earlier}
    if len(usual) != 1:
        return None
    sent, room = (pair.size_bytes, pair.dtype) in usual, (pair.size_bytes_there, pair.dtype_there) in usual
    return None if sent == room else receiver if sent else sender
