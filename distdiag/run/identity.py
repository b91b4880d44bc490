"""What has a number of its own on every rank, made comparable between ranks: call sites and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distdiag import events
from distdiag.run.frames import Ranked

NOWHERE = 0
"""Id of the path without frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Call sites of a run: ids follow the order of the frames, so they depend on nothing else."""

    frames: Mapping[int, tuple[str, ...]]
    ids: Mapping[tuple[int, int], int]
    """By rank and the rank's own number."""

    def id_of(self, rank: int, number: int) -> int:
        """Return the id of a rank's path, ``NOWHERE`` if its record is lost."""
        return self.ids.get((rank, number), NOWHERE)


def interned(ranked: Iterable[Ranked]) -> Paths:
    """Return the paths of all ranks, equal ones with one id."""
    frames = {
        (item.rank, item.record.path): tuple(item.record.frames)
        for item in ranked
        if isinstance(item.record, events.Path)
    }
    ids = {path: number for number, path in enumerate(sorted({*frames.values(), ()}))}
    return Paths(
        frames={number: path for path, number in ids.items()},
        ids={key: ids[path] for key, path in frames.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A group, identified."""

    key: str
    """The same on all members of one group, different where a name has different members."""
    members: tuple[int, ...] | None
    """None where no record tells them."""


class Interned:
    """Gives equal lists of members one number; that the same list is equal to itself is seen without comparing it."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._by_identity: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._by_value: dict[tuple[int, ...], int] = {}

    def number(self, members: tuple[int, ...]) -> int:
        """Return the number of a list."""
        known = self._by_identity.get(id(members))
        if known is None:
            # The list is kept, so that no other can come to have its identity.
            known = self._by_identity[id(members)] = self._by_value.setdefault(members, len(self._by_value)), members
        return known[0]


class Groups:
    """The groups as each rank knows them."""

    def __init__(self, ranked: Iterable[Ranked]) -> None:
        """Take the group records of all ranks."""
        shared: dict[tuple[str, int], Membership] = {}
        interned = Interned()
        self._known: dict[tuple[int, str], Membership] = {}
        self._of_name: dict[str, dict[int, Membership]] = {}
        for item in ranked:
            if isinstance(item.record, events.Group):
                name, members = item.record.group, item.record.members()
                identity = name, interned.number(members)
                if identity not in shared:
                    shared[identity] = Membership(key=group_key(name, members), members=members)
                self._known[item.rank, name] = shared[identity]
                self._of_name.setdefault(name, {})[identity[1]] = shared[identity]

    def of(self, rank: int, name: str) -> Membership:
        """Return the group that a rank means by a name.

        Where the rank's own record is lost, another's will do if only one group of that name has the rank.
        """
        known = self._known.get((rank, name))
        if known is None:
            candidates = [each for each in self._of_name.get(name, {}).values() if rank in (each.members or ())]
            known = candidates[0] if len(candidates) == 1 else Membership(key=group_key(name, None), members=None)
            self._known[rank, name] = known
        return known


def group_key(group: str, members: Sequence[int] | None) -> str:
    """Return a name that is the same on all members of one group and differs between groups."""
    return f"{group}[{'?' if members is None else events.folded(members)}]"


if TYPE_CHECKING:
    import pandas as pd


def told_apart(calls: pd.DataFrame, groups: pd.DataFrame) -> pd.DataFrame:
    """Return calls, those of a group that was made again later under a key of their own.

    The newest group keeps the plain key: steps' totals and backends' statuses are of it. Times have to be of one clock
    per rank. ``calls`` are in the order of their ranks and numbers.
    """
    made = groups.assign(number=groups["ranks"].map(Interned().number))
    made = made.drop_duplicates(["rank", "group", "number", "time_ns"])
    again = made.duplicated(["rank", "group", "number"])
    if not again.any():
        return calls
    concerned = made.merge(made.loc[again, ["group", "number"]].drop_duplicates())
    keys = {
        group_key(str(rows["group"].iloc[0]), rows["ranks"].iloc[0]): rows
        for _, rows in concerned.groupby(["group", "number"])
    }
    ranks, starts = calls["rank"].to_numpy(), calls["start_ns"].to_numpy()
    categorical: Any = calls["group_key"].cat
    codes, names = categorical.codes.to_numpy().copy(), list(categorical.categories)
    for key, rows in keys.items():
        mine = np.flatnonzero(codes == names.index(key)) if key in names else np.zeros(0, dtype=np.int64)
        if not _begins_anew(calls.iloc[mine]):
            continue
        times = {int(str(rank)): np.sort(each.to_numpy()) for rank, each in rows.groupby("rank")["time_ns"]}
        most = max(map(len, times.values()))
        for rank, moments in times.items():
            of_rank = mine[slice(*np.searchsorted(ranks[mine], [rank, rank + 1]))]
            before = np.searchsorted(moments[1:], starts[of_rank], side="right")  # groups that were there before
            for number in range(most - 1):
                name = f"{key}#{number + 1}"
                if name not in names:
                    names.append(name)
                codes[of_rank[before == number]] = names.index(name)
    ordered = np.argsort(np.array(names, dtype=object), kind="stable")
    keyed = calls["group_key"].cat.set_categories(names).array.from_codes(codes, categories=names)
    return calls.assign(group_key=keyed.reorder_categories([names[each] for each in ordered]))


def _begins_anew(calls: pd.DataFrame) -> bool:
    """Return whether numbers go back on some rank: other sources than recording may repeat a group's record."""
    back = calls.groupby(["rank", "p2p"], observed=True)["seq"].diff() <= 0
    return bool(back.any())
