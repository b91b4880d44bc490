"""How far each rank came in each group, by its calls and by what its backend says: what it issued and completed."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers.investigation.rows import records, whole
from distdiag.analyzers.investigation.sources import recorded
from distdiag.run import Run
from distdiag.run.identity import group_key

NOT_KNOWN = "unknown"
"""Clock of an end whose moment nobody saw."""
_RANK_BITS = 24

Place = tuple[str, int]
"""Group and rank."""
Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


class Progress:
    """Answers for the collectives that run on devices.

    Within a group they complete in the order in which they were issued, so numbers suffice.
    """

    def __init__(self, run: Run, queued: Booleans) -> None:
        """Take the calls that run on devices: a mask over those of the run."""
        calls = run.calls
        self._run, self._queued = run, queued
        self._calls: pd.DataFrame = calls
        self._ended = calls["end_ns"].notna().to_numpy() & ~calls["failed"].to_numpy()
        self._collective = queued & ~calls["p2p"].to_numpy()
        self._places = place_codes(calls)
        self._completed = self._newest(self._collective & self._ended)
        self._issued = self._newest(self._collective)
        self._beyond: dict[Place, Mapping[int, int]] = {}
        members = _members(run)
        for status in records(run.statuses):
            rank, group = int(status.rank), str(status.group)
            place = group_key(group, members.get((rank, group))), rank
            _raise(self._issued, place, whole(status.last_enqueued))
            _raise(self._completed, place, whole(status.last_completed))
        # A dump of active operations alone does not tell which groups were not used; whatever else was read does.
        self._whole = recorded(run) | set(np.unique(calls["rank"].to_numpy()[self._ended]).tolist())

    def completed(self, group: str, rank: int) -> int | None:
        """Return the number of the newest collective that a rank completed, None where nothing tells."""
        return self._completed.get((group, rank))

    def beyond(self, group: str, seq: int) -> Mapping[int, int]:
        """Return the ranks that completed a collective or a later one of its group, with the newest that each did."""
        known = self._beyond.get((group, seq))
        if known is None:  # all members of a group that stands ask for the same
            done = {rank: newest for (name, rank), newest in self._completed.items() if name == group}
            known = self._beyond[group, seq] = {rank: newest for rank, newest in done.items() if newest >= seq}
        return known

    def issued(self, group: str, rank: int, seq: int, given_up_ns: int | None) -> bool | None:
        """Return whether a rank issued a collective before the others gave up, None where nothing tells."""
        if given_up_ns is not None:
            mine = self._calls_of(group, seq)
            mine = mine[mine["rank"] == rank]
            if len(mine):
                return bool((mine["start_ns"] <= given_up_ns).any())
        newest = self._issued.get((group, rank))
        if newest is not None:
            return newest >= seq
        return False if rank in self._whole else None

    def ended_ns(self, group: str, seq: int) -> int | None:
        """Return when the first member saw a collective end."""
        mine = self._calls_of(group, seq)
        ends = mine[mine["end_ns"].notna() & ~mine["failed"] & (mine["clock"] != NOT_KNOWN)]["end_ns"]
        return int(ends.min()) if len(ends) else None

    def unfinished(self) -> pd.DataFrame:
        """Return the calls without a good end, but for those that later ones of their group prove to have ended."""
        calls = self._calls
        open_calls: pd.DataFrame = calls.loc[self._queued & ~self._ended]
        if open_calls.empty:
            return open_calls
        told = np.array(
            [
                -1 if p2p else self._completed.get((group, rank), -1)
                for group, rank, p2p in zip(
                    open_calls["group_key"], open_calls["rank"].tolist(), open_calls["p2p"].tolist(), strict=True
                )
            ],
            dtype=np.int64,
        )
        kept: pd.DataFrame = open_calls.loc[told < open_calls["seq"].to_numpy()]
        left: pd.DataFrame = kept.loc[~(kept["p2p"].to_numpy() & self._overtaken(kept))]
        return left

    def _overtaken(self, open_calls: pd.DataFrame) -> Booleans:
        """Return which messages are followed by one on the same way that ended."""
        calls = self._calls
        ways = ["group_key", "rank", "op", "peer"]
        places = self._places[open_calls.index[open_calls["p2p"]]]
        mask = self._queued & self._ended & calls["p2p"].to_numpy() & np.isin(self._places, np.unique(places))
        ended = calls.loc[mask, [*ways, "call"]]
        newest = ended.groupby(ways, observed=True, dropna=False)["call"].max().rename("newest")
        later = open_calls[[*ways]].join(newest, on=ways)["newest"].fillna(-1).to_numpy(dtype=np.int64)
        return np.asarray(later > open_calls["call"].to_numpy())

    def _newest(self, mask: Booleans) -> dict[Place, int]:
        calls = self._calls
        places, seqs = self._places[mask], calls["seq"].to_numpy()[mask]
        newest = pd.Series(seqs).groupby(places).max()
        names = calls["group_key"].cat.categories
        return {
            (str(names[place >> _RANK_BITS]), place & ((1 << _RANK_BITS) - 1)): seq
            for place, seq in zip(newest.index.tolist(), newest.tolist(), strict=True)
        }

    def _calls_of(self, group: str, seq: int) -> pd.DataFrame:
        calls = self._calls
        code = calls["group_key"].cat.categories.get_loc(group)
        here = (self._places >> _RANK_BITS) == code
        found: pd.DataFrame = calls.loc[here & self._collective & (calls["seq"].to_numpy() == seq)]
        return found


def place_codes(calls: pd.DataFrame) -> Integers:
    """Return a number for the group and the rank of each call."""
    groups = calls["group_key"].cat.codes.to_numpy().astype(np.int64)
    return np.asarray((groups << _RANK_BITS) + calls["rank"].to_numpy())


def _raise(known: dict[Place, int], place: Place, number: int | None) -> None:
    if number is not None:
        known[place] = max(known.get(place, 0), number)


def _members(run: Run) -> Mapping[tuple[int, str], tuple[int, ...]]:
    groups = run.groups
    keys = zip(groups["rank"].tolist(), groups["group"].astype(str).tolist(), strict=True)
    return dict(zip(keys, groups["ranks"].tolist(), strict=True))
