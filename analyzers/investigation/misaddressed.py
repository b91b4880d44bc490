"""A message that went to the wrong rank: nobody expects it there, and somebody else waits for it.

Its rank is in a circle like any other, and the partner that it names looks as if it had left something out. Two things
tell it apart: another rank waits for the same from it, and the line that issued it always served that other rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from distdiag.analyzers.investigation.issued import Issued
from distdiag.analyzers.investigation.scene import Scene
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind

RECEIVES = "recv"
SENDS = "send"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misaddressed:
    """A call whose partner is the wrong one."""

    wait: Wait
    call: Issued
    meant: int
    """Who waits for what it sends, or sends what it waits for."""
    before: int
    """How often its line served that rank before."""

    @property
    def said(self) -> str:
        """Return what it did, and what shows it."""
        call, times = self.call, "once" if self.before == 1 else f"{self.before} times"
        did, other = ("sent to", "waits for") if call.op == SENDS else ("waited for", "sends to")
        return (
            f"rank {call.rank} {did} rank {call.peer}, for the first time, at a line that {times} before served rank "
            f"{self.meant}, which {other} it"
        )


def misaddressed(scene: Scene, cycle: Sequence[Wait]) -> Misaddressed | None:
    """Return the one message of a circle that has the wrong partner; None where there is none, or several."""
    found = [
        wrong
        for wait in _messages(cycle)
        for other in _messages(scene.waits)
        if other.absent & wait.waiters and not other.waiters & wait.absent
        for call in scene.calls_in(wait).values()
        for its in scene.calls_in(other).values()
        if (wrong := _wrong(scene, wait, call, other, its)) is not None
    ]
    return found[0] if len(found) == 1 else None


def _messages(waits: Sequence[Wait]) -> list[Wait]:
    return [wait for wait in waits if wait.kind is WaitKind.POINT_TO_POINT and wait.absent and not wait.any_of]


def _wrong(scene: Scene, wait: Wait, call: Issued, other: Wait, its: Issued) -> Misaddressed | None:
    opposite = {call.op, its.op} == {SENDS, RECEIVES} and its.payload == call.payload and other.group == wait.group
    if not opposite or its.peer != call.rank:
        return None
    earlier = _earlier(scene.run.calls, wait, call)
    # To a rank that it served before it may just have been the next message, and that rank have left its side out.
    if (earlier["peer"] == call.peer).any():
        return None
    before = int(((earlier["peer"] == its.rank) & (earlier["path"] == _path_of(scene.run.calls, wait, call))).sum())
    return Misaddressed(wait=wait, call=call, meant=its.rank, before=before) if before else None


def _earlier(calls: pd.DataFrame, wait: Wait, call: Issued) -> pd.DataFrame:
    """Return the messages of one direction that a rank issued on the group before one."""
    mine = calls.loc[(calls["rank"] == call.rank) & calls["p2p"], ["group_key", "call", "op", "peer", "path"]]
    return mine[(mine["group_key"] == wait.group) & (mine["op"] == call.op) & (mine["call"] < call.call)]


def _path_of(calls: pd.DataFrame, wait: Wait, call: Issued) -> int:
    mine = calls.loc[(calls["rank"] == call.rank) & (calls["call"] == call.call), "path"]
    return int(mine.iloc[0])
