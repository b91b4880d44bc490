"""How far each rank came in each group, by its calls and by what its backend says: what it issued and completed."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from distdiag._identity import group_key
from distdiag.analyzers._rows import records, whole
from distdiag.run import Run

OWN = "distdiag"
NOT_KNOWN = "unknown"
"""Clock of an end whose moment nobody saw."""

Place = tuple[str, int]
"""Group and rank."""


class Progress:
    """Answers for the collectives that run on devices.

    Within a group they complete in the order in which they were issued, so numbers suffice.
    """

    def __init__(self, run: Run, queued: pd.DataFrame) -> None:
        """Take the calls that run on devices."""
        self._queued = queued
        self._collectives = collectives = queued[~queued["p2p"]]
        ended = collectives[collectives["end_ns"].notna() & ~collectives["failed"]]
        self._completed = _newest(ended)
        self._issued = _newest(collectives)
        for status in records(run.statuses):
            members = _members(run, int(status.rank), str(status.group))
            place = (group_key(str(status.group), members), int(status.rank))
            _raise(self._issued, place, whole(status.last_enqueued))
            _raise(self._completed, place, whole(status.last_completed))
        self._whole = _whole_logs(run)

    def completed(self, group: str, rank: int) -> int | None:
        """Return the number of the newest collective that a rank completed, None where nothing tells."""
        return self._completed.get((group, rank))

    def issued(self, group: str, rank: int, seq: int, given_up_ns: int | None) -> bool | None:
        """Return whether a rank issued a collective before the others gave up, None where nothing tells."""
        calls = self._collectives
        if given_up_ns is not None:
            mine = calls[(calls["group_key"] == group) & (calls["rank"] == rank) & (calls["seq"] == seq)]
            if len(mine):
                return bool((mine["start_ns"] <= given_up_ns).any())
        newest = self._issued.get((group, rank))
        if newest is not None:
            return newest >= seq
        return False if rank in self._whole else None

    def ended_ns(self, group: str, seq: int) -> int | None:
        """Return when the first member saw a collective end."""
        calls = self._collectives
        mine = calls[(calls["group_key"] == group) & (calls["seq"] == seq) & calls["end_ns"].notna()]
        ends = mine[~mine["failed"] & (mine["clock"] != NOT_KNOWN)]["end_ns"]
        return int(ends.min()) if len(ends) else None

    def unfinished(self) -> pd.DataFrame:
        """Return the calls without a good end, but for those that later ones of their group prove to have ended."""
        calls = self._queued
        open_calls = calls[calls["end_ns"].isna() | calls["failed"]]
        if open_calls.empty:
            return open_calls
        stream = ["group_key", "rank", "p2p", "op", "peer"]
        ended = calls[calls["end_ns"].notna() & ~calls["failed"]]
        newest = ended.groupby(stream, observed=True, dropna=False)["call"].max().rename("newest")
        later = open_calls.join(newest, on=stream)["newest"].fillna(-1).to_numpy(dtype=np.int64)
        told = np.array(
            [
                -1 if p2p else self._completed.get((group, rank), -1)
                for group, rank, p2p in zip(
                    open_calls["group_key"], open_calls["rank"].tolist(), open_calls["p2p"].tolist(), strict=True
                )
            ],
            dtype=np.int64,
        )
        return open_calls[(later < open_calls["call"].to_numpy()) & (told < open_calls["seq"].to_numpy())]


def _newest(calls: pd.DataFrame) -> dict[Place, int]:
    newest = calls.groupby(["group_key", "rank"], observed=True)["seq"].max().reset_index()
    places = zip(newest["group_key"].astype(str), newest["rank"].tolist(), strict=True)
    return dict(zip(places, newest["seq"].tolist(), strict=True))


def _raise(known: dict[Place, int], place: Place, number: int | None) -> None:
    if number is not None:
        known[place] = max(known.get(place, 0), number)


def _members(run: Run, rank: int, group: str) -> tuple[int, ...] | None:
    groups = run.groups
    mine = groups[(groups["rank"] == rank) & (groups["group"] == group)]["ranks"]
    members: tuple[int, ...] | None = mine.iloc[-1] if len(mine) else None
    return members


def _whole_logs(run: Run) -> frozenset[int]:
    """Return the ranks whose logs hold what they did not do as well: a group they do not speak of was not used.

    A dump of active operations alone does not.
    """
    sources: Mapping[int, str] = dict(zip(run.headers["rank"].tolist(), run.headers["source"].tolist(), strict=True))
    completed = set(run.calls[run.calls["end_ns"].notna() & ~run.calls["failed"]]["rank"].unique().tolist())
    return frozenset(rank for rank in run.ranks if sources.get(rank, OWN).startswith(OWN) or rank in completed)
