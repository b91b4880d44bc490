"""The collectives of each group as its members issued them, and which groups are worth a closer look.

At a thousand ranks nearly all groups agree everywhere. Vector operations find those that do not; only these are
taken apart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers.investigation.align import Stream, Token
from distdiag.analyzers.investigation.lives import Life, before_failure
from distdiag.analyzers.investigation.loops import Labels
from distdiag.run import Run

Integers = npt.NDArray[np.int64]

NOT_COMPARED = frozenset(
    {
        "arrive_ns",
        "captured",
        "clock",
        "contended",
        "device",
        "duration_ns",
        "path_chain",
        "size_bytes",
        "tag",
        "wait_start_ns",
    }
)
"""Columns that no comparison looks at: of a million calls each copy of them takes megabytes."""
COALESCED = 1 << 12
"""Calls of one coalesced batch may share a sequence number; so many are told apart."""
_POSITION_BITS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What one rank issued on a group: rows of the run's calls, and what tells them apart."""

    rows: Integers
    codes: Integers
    """Equal for equal signature, call site and module."""
    agree: Integers
    """Equal where all that has to agree does, or the backend fails."""
    told: Integers
    """The same, with the kind of a reduction where that tells calls apart: no backend compares it."""
    threads: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCalls:
    """The collectives of one group, from the first that all its logs still hold."""

    key: str
    group: str
    members: tuple[int, ...] | None
    by_rank: Mapping[int, Member]
    unequal: int | None
    """Position of the first calls, paired as the backend paired them, that had to agree and do not."""
    diverged_before: bool
    """Whether the chain hashes say that members already differed before the first call still held."""


def collectives_of(run: Run, lives: Mapping[int, Life]) -> pd.DataFrame:
    """Return the collectives that count: none of a captured graph, none issued after its rank had failed."""
    calls = run.calls
    others = (calls["p2p"] | calls["captured"]).to_numpy(dtype=bool)
    kept: npt.NDArray[np.bool_] = before_failure(calls, lives) & ~others
    return calls if kept.all() else calls.loc[kept, [name for name in calls if name not in NOT_COMPARED]]


def groups_that_differ(calls: pd.DataFrame, told: Integers, *, sites_too: bool) -> tuple[GroupCalls, ...]:
    """Return the groups whose members did not issue the same calls; ``told`` is what tells each from others.

    With ``sites_too`` a different call site or module is a difference as well, else only what has to agree.
    """
    if calls.empty:
        return ()
    keys = calls["group_key"]
    groups, positions = keys.cat.codes.to_numpy().astype(np.int64), _positions(calls)
    codes = _codes(calls, told) if sites_too else told
    differing = _differing(groups, positions, codes)
    return tuple(
        _group_calls(calls, told, np.flatnonzero(groups == number), positions, str(keys.cat.categories[number]))
        for number in sorted(differing, key=lambda number: str(keys.cat.categories[number]))
    )


def stream_of(run: Run, calls: pd.DataFrame, member: Member, labels: Labels) -> Stream:
    """Return a member's calls as something that can be aligned."""
    rows = calls.iloc[member.rows]
    modules = [module if isinstance(module, str) else None for module in rows["module"]]
    tokens = [
        Token(told, run.paths.get(path, ()), module)
        for told, path, module in zip(member.told.tolist(), rows["path"].tolist(), modules, strict=True)
    ]
    return Stream(tokens=tokens, labels=labels.of(rows))


def _positions(calls: pd.DataFrame) -> Integers:
    """Return a number of each call in its group that is the same on all members."""
    sequence = calls["seq"].to_numpy().astype(np.int64) * COALESCED
    if calls["coalesced"].isna().all():
        return sequence
    repeats = calls.groupby(["group_key", "rank", "seq"], observed=True).cumcount().to_numpy()
    return sequence + np.minimum(repeats, COALESCED - 1)


def _codes(calls: pd.DataFrame, told: Integers) -> Integers:
    """Return numbers that are equal for equal signature, path and module."""
    modules = pd.factorize(calls["module"], sort=True)[0].astype(np.uint64) + np.uint64(1)
    paths = calls["path"].to_numpy().astype(np.uint64)
    mixed = told.astype(np.uint64) << np.uint64(32)
    mixed ^= (paths << np.uint64(12)) ^ modules
    return mixed.astype(np.int64)


def _differing(groups: Integers, positions: Integers, codes: Integers) -> list[int]:
    """Return the groups in which two members differ at one position."""
    keys = (groups << _POSITION_BITS) + positions
    order = np.argsort(keys, kind="stable")
    keys, codes = keys[order], codes[order]
    unequal = (keys[1:] == keys[:-1]) & (codes[1:] != codes[:-1])
    return [int(number) for number in np.unique(groups[order][1:][unequal])]


def _group_calls(calls: pd.DataFrame, told: Integers, rows: Integers, positions: Integers, key: str) -> GroupCalls:
    of_group = calls.iloc[rows]
    ranks = of_group["rank"].to_numpy()
    told = told[rows]
    codes, agree = _codes(of_group, told), of_group["agree"].to_numpy().astype(np.int64)
    where, threads = positions[rows], of_group["thread"].to_numpy()
    starts = {int(rank): _last_hole(where[ranks == rank]) for rank in np.unique(ranks)}
    first = max(starts.values())
    by_rank = {
        rank: Member(
            rows=rows[(ranks == rank) & (where >= first)],
            codes=codes[(ranks == rank) & (where >= first)],
            agree=agree[(ranks == rank) & (where >= first)],
            told=told[(ranks == rank) & (where >= first)],
            threads=frozenset(map(str, threads[ranks == rank])),
        )
        for rank in starts
    }
    chains = of_group["chain"].to_numpy()[where == first]
    agreed = agree[where == first]
    return GroupCalls(
        key=key,
        group=str(of_group["group"].iloc[0]),
        members=of_group["members"].iloc[0],
        by_rank=by_rank,
        unequal=_first_unequal([member.agree for member in by_rank.values()]),
        diverged_before=first // COALESCED > 1 and len(set(chains)) > 1 and len(set(agreed)) == 1,
    )


def _last_hole(positions: Integers) -> int:
    """Return where the calls that follow one another without a gap begin: older ones may have been dropped."""
    sequence = positions // COALESCED
    holes = np.flatnonzero(np.diff(sequence) > 1)
    return int(positions[holes[-1] + 1]) if len(holes) else int(positions[0])


def _first_unequal(streams: Iterable[Integers]) -> int | None:
    """Return the first position at which two streams differ."""
    ordered = sorted(streams, key=len)
    longest = ordered[-1]
    found = [
        int(differing[0])
        for stream in ordered[:-1]
        if len(differing := np.flatnonzero(stream != longest[: len(stream)]))
    ]
    return min(found, default=None)
