"""Groups that were destroyed and made again with the same name and members: numbers of calls begin anew with each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from distdiag.run.identity import Interned, group_key

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
