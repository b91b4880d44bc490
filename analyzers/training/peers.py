"""Which ranks compute the same model on different samples, as the wrappers that average their gradients tell."""

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from distdiag.events import BESIDE, BY_HAND, HYBRID
from distdiag.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """A group whose members average their gradients in one wrapper."""

    wrapper: int
    """Number of the wrapper, the same on all members."""
    group: str
    """Name of the group."""
    members: tuple[int, ...]
    names: tuple[str, ...]
    """What its checksums cover: parameters in order, or the first ones of blocks."""
    size_bytes: int
    """Of all gradients."""
    shards: bool
    """Whether members hold different parts of the parameters."""
    by_hand: bool = False
    """Whether the script averages by itself, so that they may well have the same samples."""
    hybrid: bool = False
    """Whether members hold the same shard, which no wrapper makes equal in the beginning."""


_data_parallel: weakref.WeakKeyDictionary[Run, tuple[DataParallel, ...]] = weakref.WeakKeyDictionary()
"""Several analyzers ask; the answer lives as long as its run."""


def data_parallel(run: Run) -> tuple[DataParallel, ...]:
    """Return the groups in which more than one rank with a log averages gradients, ordered by members."""
    known = _data_parallel.get(run)
    if known is None:
        known = _data_parallel[run] = tuple(_averaging(run)) if len(run.wrappers) else ()
    return known


def _averaging(run: Run) -> list[DataParallel]:
    members = _members(run)
    found: dict[tuple[int, str, tuple[int, ...]], DataParallel] = {}
    for row in run.wrappers[~run.wrappers["name"].isin([BY_HAND, BESIDE])].to_dict("records"):
        ranks = members.get((int(row["rank"]), str(row["group"])), ())
        key = int(row["wrapper"]), str(row["group"]), ranks
        names = tuple(row["parameters"] or ())
        if len(ranks) > 1 and key not in found:
            found[key] = DataParallel(
                wrapper=key[0],
                group=key[1],
                members=ranks,
                names=names,
                size_bytes=int(row["size_bytes"]),
                shards=row["name"] not in ("DistributedDataParallel", HYBRID),
                hybrid=row["name"] == HYBRID,
            )
    return [found[key] for key in sorted(found, key=lambda key: (key[2], key[1], key[0]))]


def by_hand(run: Run) -> tuple[DataParallel, ...]:
    """Return groups without a wrapper whose members all said to average the gradients of the same parameters."""
    return _told(run, BY_HAND)


def beside(run: Run) -> tuple[DataParallel, ...]:
    """Return groups of a wrapper whose members all train the same parameters beside it."""
    return _told(run, BESIDE)


def _told(run: Run, name: str) -> tuple[DataParallel, ...]:
    if not len(run.wrappers):
        return ()
    members = _members(run)
    said: dict[tuple[tuple[int, ...], str, int], dict[int, tuple[str, ...]]] = {}
    sizes: dict[int, int] = {}
    for row in run.wrappers[run.wrappers["name"] == name].to_dict("records"):
        rank, group, number = int(row["rank"]), str(row["group"]), int(row["wrapper"])
        ranks = members.get((rank, group), ())
        said.setdefault((ranks, group, number), {})[rank] = tuple(row["parameters"] or ())
        sizes[number] = int(row["size_bytes"])
    return tuple(
        DataParallel(
            wrapper=number,
            group=group,
            members=ranks,
            names=next(iter(names.values())),
            size_bytes=sizes[number],
            shards=False,
            by_hand=name == BY_HAND,
        )
        for (ranks, group, number), names in sorted(said.items())
        if len(ranks) > 1 and set(names) == set(ranks) and len(set(names.values())) == 1
    )


def _members(run: Run) -> Mapping[tuple[int, str], tuple[int, ...]]:
    """Return the ranks of a group by one that knows it and the name it has there."""
    columns = (run.groups[name].tolist() for name in ("rank", "group", "ranks"))
    return {(rank, str(group)): tuple(ranks) for rank, group, ranks in zip(*columns, strict=True)}


def of_wrapper(frame: pd.DataFrame, group: DataParallel) -> pd.DataFrame:
    """Return the rows of a frame that members of a group wrote about its wrapper."""
    return frame[frame["rank"].isin(group.members) & (frame["wrapper"] == group.wrapper)]


def by_value(values: Mapping[int, object]) -> list[tuple[object, tuple[int, ...]]]:
    """Return each value with its ranks, in the order of their first ranks."""
    ranks: dict[str, list[int]] = {}
    for rank in sorted(values):
        ranks.setdefault(repr(values[rank]), []).append(rank)
    return [(values[each[0]], tuple(each)) for each in sorted(ranks.values())]


def first(steps: Iterable[int]) -> int | None:
    """Return the smallest of some steps."""
    return min(steps, default=None)
