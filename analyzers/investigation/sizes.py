"""Sizes that contradict one another, where the source does not refuse them: within a call, or over its members.

PyTorch checks most sizes before it records a call, so logs of our own hold no such calls; dumps of other backends may.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from distdiag.analyzers.investigation.channels import Message
from distdiag.analyzers.investigation.issued import Issued, issued, settled_ns
from distdiag.analyzers.investigation.paths import location
from distdiag.analyzers.investigation.rows import oldest, records
from distdiag.analyzers.investigation.sources import recorded
from distdiag.run import Run

GATHERS = frozenset({"all_gather", "all_gather_into_tensor"})
SCATTERS = frozenset({"reduce_scatter", "reduce_scatter_tensor"})
ALIKE = frozenset({"all_reduce", "all_reduce_coalesced"})
EXCHANGES = frozenset({"all_to_all", "all_to_all_single"})
SIZES = re.compile(r"(?P<received>\d+) vs (?P<expected>\d+)\. Received data size doesn't match expected size")
"""What gloo says when a peer sends more than fits; it aborts the process that has the smaller buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeMismatch:
    """A call whose sizes cannot be."""

    key: str
    seq: int
    calls: dict[int, Issued]
    """By rank."""
    odd: tuple[int, ...]
    """Ranks whose own call cannot be; empty where only all calls together cannot."""
    why: str
    """Numbers and rule, as a sentence says them."""

    @property
    def time_ns(self) -> int:
        """Return when all of it had been issued, or somebody had failed in it."""
        return settled_ns(self.calls.values())


def size_mismatches(run: Run, calls: pd.DataFrame) -> Iterator[SizeMismatch]:
    """Yield per group the first collective whose sizes cannot be."""
    foreign = calls[~calls["rank"].isin(recorded(run)) & calls["members"].notna()]
    if foreign.empty:
        return
    sized = _with_sizes(foreign)
    wrong = sized[sized["wrong"]]
    exchanged = sized[sized["op"].isin(EXCHANGES)]
    exchanged = exchanged[exchanged["input_splits"].map(len) == 0]
    totals = exchanged.groupby(["group_key", "seq"], observed=True).agg(
        count=("rank", "nunique"), size=("size", "first"), sent=("numel", "sum"), room=("output_numel", "sum")
    )
    unequal = totals[(totals["count"] == totals["size"]) & (totals["sent"] != totals["room"])]
    firsts = pd.concat([wrong.groupby("group_key", observed=True)["seq"].min(), _first_seqs(unequal)])
    for key, seq in firsts.groupby(level=0).min().items():
        yield _mismatch(run, sized[(sized["group_key"] == key) & (sized["seq"] == seq)])


def of_messages(run: Run, pairs: tuple[tuple[Message, Message], ...]) -> Iterator[SizeMismatch]:
    """Yield the messages whose two halves are not of one size."""
    for here, there in pairs[:1]:
        rows = run.calls[
            ((run.calls["rank"] == here.rank) & (run.calls["call"] == here.call))
            | ((run.calls["rank"] == there.rank) & (run.calls["call"] == there.call))
        ]
        sender, receiver = (here, there) if here.sends else (there, here)
        yield SizeMismatch(
            key=here.group,
            seq=here.seq,
            calls={int(row.rank): issued(run, row) for row in records(rows)},
            odd=(),
            why=f"rank {sender.rank} sends {sender.numel} elements and rank {receiver.rank} makes room for "
            f"{receiver.numel}",
        )


def _first_seqs(totals: pd.DataFrame) -> "pd.Series[int]":
    seqs = totals.reset_index()[["group_key", "seq"]]
    return seqs.groupby("group_key", observed=True)["seq"].min()


def _with_sizes(calls: pd.DataFrame) -> pd.DataFrame:
    """Return calls with the size of their group, the elements of their outputs, and whether their sizes can be."""
    position = np.zeros(len(calls), dtype=np.int64)
    for column in ("op", "shapes", "output_shapes", "group_key"):  # hashing members for each call takes long
        codes, values = pd.factorize(calls[column])
        # Few combinations occur, so that the product stays small; -1 is a value that is missing.
        position, _ = pd.factorize(position * (len(values) + 1) + codes + 1)
    firsts = ~pd.Series(position).duplicated().to_numpy()  # they are numbered in the order in which they come
    distinct = [_sized(row.op, row.shapes, row.output_shapes, row.members) for row in records(calls[firsts])]
    table = pd.DataFrame(distinct, columns=["output_numel", "size", "wrong"]).iloc[position]
    return calls.assign(output_numel=table["output_numel"].array, size=table["size"].array, wrong=table["wrong"].array)


def _sized(
    op: str, shapes: tuple[tuple[int, ...], ...], outputs: tuple[tuple[int, ...], ...], members: tuple[int, ...]
) -> tuple[int, int, bool]:
    here, there, size = sum(map(math.prod, shapes)), sum(map(math.prod, outputs)), len(members)
    if not shapes or not outputs:
        return there, size, False
    if op in GATHERS and len({math.prod(shape) for shape in outputs}) == 1:  # lists may be uneven
        return there, size, there != here * size
    if op in SCATTERS and len({math.prod(shape) for shape in shapes}) == 1:
        return there, size, here != there * size
    return there, size, op in ALIKE and here != there


def _mismatch(run: Run, rows: pd.DataFrame) -> SizeMismatch:
    calls = {int(row.rank): issued(run, row) for row in records(rows)}
    odd = tuple(sorted(int(rank) for rank in rows[rows["wrong"]]["rank"]))
    first = rows[rows["wrong"]].iloc[0] if odd else rows.iloc[0]
    return SizeMismatch(
        key=str(first["group_key"]), seq=int(first["seq"]), calls=calls, odd=odd, why=_why(rows, first, bool(odd))
    )


def _why(rows: pd.DataFrame, first: "pd.Series[Any]", within: bool) -> str:
    passed, room, size = int(first["numel"]), int(first["output_numel"]), int(first["size"])
    if not within:
        return f"all ranks together send {rows['numel'].sum()} elements and make room for {rows['output_numel'].sum()}"
    if first["op"] in GATHERS:
        return f"{passed} elements of each of {size} ranks do not make outputs of {room}"
    if first["op"] in SCATTERS:
        return f"{passed} elements over {size} ranks do not make {room} for each"
    return f"{passed} elements are reduced into {room}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldSizes:
    """A rank was sent more than it had room for."""

    rank: int
    time_ns: int
    received_bytes: int
    expected_bytes: int
    sites: dict[int, str]
    """Where the others noticed: they may have been done with that operation."""


def told_sizes(run: Run) -> Iterator[ToldSizes]:
    """Yield the first message about sizes that differ."""
    said = run.faults[run.faults["message"].map(lambda text: bool(SIZES.search(str(text))))]
    if said.empty:
        return
    first = oldest(said)
    found = SIZES.search(str(first["message"]))
    failed = run.calls[run.calls["failed"]]
    paths = {int(r): run.paths.get(int(p), ()) for r, p in zip(failed["rank"], failed["path"], strict=True)}
    sites = {rank: location(path[-1]) for rank, path in paths.items() if path}
    if found is not None:
        yield ToldSizes(
            rank=int(first["rank"]),
            time_ns=int(first["time_ns"]),
            received_bytes=int(found["received"]),
            expected_bytes=int(found["expected"]),
            sites=sites,
        )
