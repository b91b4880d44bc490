"""Cross checks of what each member sends to each other member against what that one expects."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers.investigation.issued import Issued, issued, settled_ns
from distdiag.analyzers.investigation.rows import records
from distdiag.analyzers.investigation.sources import recorded
from distdiag.run import Run

SCATTER = "scatter"
EXCHANGES = frozenset({"all_to_all_single", "all_to_all", "all_gather", SCATTER})
CHECKED_ROWS = 20_000
"""Up to here every exchange is checked; of more, the newest: one that does not fit rarely lets a run go on."""
NEWEST = 3
SIDES = ("rank", "op", "shapes", "output_shapes", "input_splits", "output_splits")
"""Columns that tell what goes from whom to whom."""
LEAST_OTHERS = 2
"""So many ranks besides the two of a pair have to do the same to show which of the two does not."""

_Sides = tuple[tuple[int, ...], tuple[int, ...]]
"""How much a member sends to each member, and expects from each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMismatch:
    """Members of one exchange that do not fit together."""

    key: str
    seq: int
    sender: Issued
    receiver: Issued
    sent: int
    expected: int
    culprit: int | None
    """The rank in most of the pairs that do not fit; of one pair, the one that does not do what all others do."""
    calls: Mapping[int, Issued]
    lists: bool
    """Whether split lists differ, and not the sizes of whole inputs."""

    @property
    def time_ns(self) -> int:
        """Return when both sides had issued their call, or one had failed in it."""
        return settled_ns((self.sender, self.receiver))


def split_mismatches(run: Run, calls: pd.DataFrame) -> Iterator[SplitMismatch]:
    """Yield per group the first exchange whose members do not fit together."""
    exchanges = _newest(calls, calls["op"].isin(EXCHANGES).to_numpy())
    # That a backend does not tell how much goes to whom does not mean that all get the same.
    untold = ~exchanges["rank"].isin(recorded(run)) & (exchanges["input_splits"].map(len) == 0)
    exchanges = exchanges[~(untold & exchanges["op"].isin(("all_to_all_single", SCATTER)))]
    if exchanges.empty:
        return
    found: set[str] = set()
    fitting: set[tuple[object, ...]] = set()
    of_groups = exchanges["members"].tolist()
    asked = list(zip(*(exchanges[column].tolist() for column in SIDES), strict=True))
    instances: Mapping[Any, Any] = exchanges.groupby(["group_key", "seq"], observed=True).indices
    for (key, seq), positions in instances.items():
        members = of_groups[positions[0]]
        if str(key) in found or members is None:
            continue
        shape = _shape(members, [asked[position] for position in positions])
        if shape in fitting:
            continue
        mismatch = _mismatch(run, str(key), int(str(seq)), exchanges.iloc[positions], members)
        if mismatch is None:
            fitting.add(shape)
        else:
            found.add(str(key))
            yield mismatch


def _newest(calls: pd.DataFrame, mask: npt.NDArray[np.bool_]) -> pd.DataFrame:
    """Return all of some calls, or the newest of each group where they are very many."""
    rows = np.flatnonzero(mask)
    if len(rows) > CHECKED_ROWS:
        seqs = calls[["group_key", "seq"]].iloc[rows]
        newest = seqs.groupby("group_key", observed=True)["seq"].transform("max") - NEWEST
        rows = rows[(seqs["seq"] > newest).to_numpy()]
    return calls.iloc[rows]


def _shape(members: Sequence[int], asked: Sequence[tuple[Any, ...]]) -> tuple[object, ...]:
    """Return what decides whether members fit: where all ask for the same evenly divided, not who asks."""
    kinds = {each[1:] for each in asked}
    if len(kinds) == 1 and not any(asked[0][-2:]):
        return len(members), len(asked), kinds.pop()
    return tuple(members), tuple(asked)


def _mismatch(run: Run, key: str, seq: int, rows: pd.DataFrame, members: Sequence[int]) -> SplitMismatch | None:
    if (rows["op"] == SCATTER).all():
        return _scattered(run, key, seq, rows, members)
    sides: dict[int, _Sides] = {}
    for row in records(rows[list(SIDES)]):
        sends, expects = _sides(row, len(members))
        sides[int(row.rank)] = tuple(sends), tuple(expects)
    bad = [
        (sender, receiver, sides[sender][0][there], sides[receiver][1][here])
        for here, sender in enumerate(members)
        for there, receiver in enumerate(members)
        if sender in sides and receiver in sides
        if len(sides[sender][0]) == len(members) == len(sides[receiver][1])
        if sides[sender][0][there] != sides[receiver][1][here]
    ]
    if not bad:
        return None
    calls = {int(row.rank): issued(run, row) for row in records(rows)}
    sender, receiver, sent, expected = bad[0]
    involved = _most_involved([(pair[0], pair[1]) for pair in bad])
    return SplitMismatch(
        key=key,
        seq=seq,
        sender=calls[sender],
        receiver=calls[receiver],
        sent=sent,
        expected=expected,
        culprit=involved if involved is not None else _unlike_the_rest(sides, sender, receiver),
        calls=calls,
        lists=calls[sender].op != "all_gather",
    )


def _scattered(run: Run, key: str, seq: int, rows: pd.DataFrame, members: Sequence[int]) -> SplitMismatch | None:
    """Return the first part of a scatter for which its receiver has no room, or too much: no backend refuses it."""
    parts = {int(row.rank): [_elements(shape) for shape in row.output_shapes] for row in records(rows[list(SIDES)])}
    root = next((rank for rank, sizes in parts.items() if len(sizes) == len(members)), None)
    room = {int(row.rank): _elements(row.shapes[0]) for row in records(rows[list(SIDES)]) if len(row.shapes) == 1}
    if root is None:
        return None
    sent = dict(zip(members, parts[root], strict=True))
    bad = [rank for rank in members if rank in room and room[rank] != sent[rank]]
    if not bad:
        return None
    calls = {int(row.rank): issued(run, row) for row in records(rows)}
    usual = statistics.mode([*sent.values(), *room.values()])
    odd = {root if room[rank] == usual else rank for rank in bad if usual in (room[rank], sent[rank])}
    return SplitMismatch(
        key=key,
        seq=seq,
        sender=calls[root],
        receiver=calls[bad[0]],
        sent=sent[bad[0]],
        expected=room[bad[0]],
        culprit=odd.pop() if len(odd) == 1 else None,
        calls=calls,
        lists=False,
    )


def _most_involved(pairs: Sequence[tuple[int, int]]) -> int | None:
    counts: dict[int, int] = {}
    for sender, receiver in pairs:
        for rank in {sender, receiver}:
            counts[rank] = counts.get(rank, 0) + 1
    ordered = sorted(counts.values(), reverse=True)
    if len(ordered) > 1 and ordered[0] == ordered[1]:
        return None
    return max(counts, key=lambda rank: counts[rank])


def _unlike_the_rest(sides: Mapping[int, _Sides], sender: int, receiver: int) -> int | None:
    """Return which of two ranks does not do what all ranks besides them do, where these do the same."""
    others = [each for rank, each in sides.items() if rank not in (sender, receiver)]
    usual = others[0] if len(others) >= LEAST_OTHERS else None
    if usual is None or any(each != usual for each in others):
        return None
    sends_otherwise, expects_otherwise = sides[sender][0] != usual[0], sides[receiver][1] != usual[1]
    if sends_otherwise == expects_otherwise:
        return None
    return sender if sends_otherwise else receiver


def _sides(row: Any, size: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return how much a member sends to each member and expects from each."""
    shapes, outputs = row.shapes, row.output_shapes
    if row.op == "all_to_all_single":
        sends = row.input_splits or _even(shapes, size)
        return sends, row.output_splits or _even(outputs, size)
    if row.op == "all_to_all":
        return [_elements(shape) for shape in shapes], [_elements(shape) for shape in outputs]
    mine = _elements(shapes[0]) if len(shapes) == 1 else -1
    return [mine] * size if mine >= 0 else (), [_elements(shape) for shape in outputs]


def _even(shapes: Sequence[Sequence[int]], size: int) -> Sequence[int]:
    return [shapes[0][0] // size] * size if shapes and shapes[0] else ()


def _elements(shape: Sequence[int]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total
