"""What each rank did in all of its groups: in one program, whoever leaves what most others did is the odd one.

The members of a group of two that go apart show two sides and no majority, and a circle of groups has no first member.
But other ranks run the same program in groups of their own: those that had issued the same calls until then, and went
on alike, say which side is the one that left.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from distdiag.analyzers.investigation.align import Departure, Kind
from distdiag.analyzers.investigation.divergence import Divergence, divergence_at
from distdiag.analyzers.investigation.loops import Labels
from distdiag.analyzers.investigation.streams import GroupCalls, Integers, Member, stream_of
from distdiag.run import Run

LEAST_PEERS = 2
"""So many other ranks have to have gone on alike; one alone is as likely to be the odd one."""
MOST_SUSPECTS = 64
"""So many ranks are looked at one by one; a fault that leaves more of them undecided is no single rank's."""
OTHER_WAY: Mapping[Kind | None, Kind] = {Kind.EXTRA: Kind.LEFT_OUT, Kind.LEFT_OUT: Kind.EXTRA}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vote:
    """What ranks with the past of a suspect did next."""

    position: int
    alike: tuple[int, ...]
    """Those that did what the suspect did."""
    others: tuple[int, ...]
    """Those that did the one other thing that any of them did."""

    @property
    def is_odd(self) -> bool:
        """Return whether a strict majority did something else."""
        return len(self.others) >= LEAST_PEERS and len(self.others) > len(self.alike) + 1


class Programs:
    """The calls of each rank over all its groups, in the order in which it issued them."""

    def __init__(self, run: Run, calls: pd.DataFrame, labels: Labels) -> None:
        """Take the collectives that count."""
        self._run, self._calls, self._labels = run, calls, labels
        codes = _codes(run, calls)
        ranks, starts = calls["rank"].to_numpy(), calls["start_ns"].to_numpy()
        order = np.lexsort((starts, ranks))
        distinct, firsts = np.unique(ranks[order], return_index=True)
        self._rows = dict(zip(distinct.tolist(), np.split(order, firsts[1:]), strict=True))
        self._codes = {rank: codes[rows] for rank, rows in self._rows.items()}
        steps = calls["step"].to_numpy().astype(np.int64)
        self._steps = {rank: steps[rows] for rank, rows in self._rows.items()}

    def decided(self, d: Divergence) -> Divergence:
        """Return a divergence of two sides with the odd one named, where ranks of other groups tell which it is."""
        if d.decided or d.made is None or d.expected is None:
            return d
        made, expected = self._vote(d.made.rank, d.made.start_ns), self._vote(d.expected.rank, d.expected.start_ns)
        if made is not None and made.is_odd:
            return replace(d, decided=True, peers=tuple(sorted(set(made.others) - set(d.others))))
        if expected is None or not expected.is_odd:
            return d
        return replace(
            d,
            decided=True,
            peers=tuple(sorted(set(expected.others) - set(d.odd))),
            kind=OTHER_WAY.get(d.kind, d.kind),
            expected=d.made,
            made=d.expected,
            odd=d.others,
            others=d.odd,
            reference=d.stream,
            stream=d.reference,
            where=replace(
                d.where,
                reference=d.where.odd,
                odd=d.where.reference,
                kind=OTHER_WAY.get(d.where.kind, d.where.kind),
            ),
        )

    def odd_one(self, blocked: Mapping[int, int]) -> Divergence | None:
        """Return where one rank left what most did, of ranks that are in a call since some moment; None if none did."""
        if len(blocked) > MOST_SUSPECTS:
            return None
        votes = {rank: vote for rank, since in blocked.items() if (vote := self._vote(rank, since)) is not None}
        odd = sorted(rank for rank, vote in votes.items() if vote.is_odd)
        if not odd:
            return None
        vote = votes[odd[0]]
        if any(set(votes[rank].others) != set(vote.others) for rank in odd):
            return None
        return self._divergence(tuple(odd), vote)

    def _divergence(self, odd: tuple[int, ...], vote: _Vote) -> Divergence:
        reference, position = vote.others[0], vote.position
        members = {rank: self._member(rank) for rank in (*odd, *vote.others)}
        made = self._calls.iloc[int(self._rows[odd[0]][position])]
        group = GroupCalls(
            key=str(made["group_key"]),
            group=str(made["group"]),
            members=made["members"],
            by_rank=members,
            unequal=position,
            diverged_before=False,
        )
        streams = {rank: stream_of(self._run, self._calls, members[rank], self._labels) for rank in (reference, odd[0])}
        return divergence_at(
            self._run,
            self._calls,
            group,
            self._labels,
            Departure(reference=position, odd=position, kind=None),
            reference=(reference, streams[reference]),
            odd=(odd[0], streams[odd[0]]),
            odd_ranks=odd,
            others=vote.others,
            decided=True,
        )

    def _member(self, rank: int) -> Member:
        rows = self._rows[rank]
        agree = self._calls["agree"].to_numpy()[rows].astype(np.int64)
        return Member(rows=rows, codes=self._codes[rank], agree=agree, told=agree, threads=frozenset())

    def _vote(self, rank: int, start_ns: int) -> _Vote | None:
        rows = self._rows.get(rank)
        if rows is None:
            return None
        position = int(np.searchsorted(self._calls["start_ns"].to_numpy()[rows], start_ns))
        if position >= len(rows) or self._steps[rank][position] <= self._steps[rank][0]:
            return None  # stages of a pipeline begin alike, and each goes on in its own way
        past, steps, mine = self._codes[rank][:position], self._steps[rank][:position], int(self._codes[rank][position])
        peers = [
            (other, int(codes[position]))
            for other, codes in self._codes.items()
            if other != rank
            and len(codes) > position
            and np.array_equal(codes[:position], past)
            and np.array_equal(self._steps[other][:position], steps)
        ]
        alike = tuple(other for other, code in peers if code == mine)
        usual = _most_common(code for _, code in peers if code != mine)
        return _Vote(position=position, alike=alike, others=tuple(other for other, code in peers if code == usual))


def _most_common(codes: Iterable[int]) -> int | None:
    counts = Counter(codes).most_common(1)
    return counts[0][0] if counts else None


def _codes(run: Run, calls: pd.DataFrame) -> Integers:
    """Return numbers that are equal for calls of one kind, size and module in groups of one kind.

    Lines are left out: who has a role of its own runs the same program on others. So are roots, which are ranks.
    """
    described = run.groups.drop_duplicates("group").set_index("group")["description"]
    kinds = calls["group"].map(described)
    columns = (kinds, calls["module"], calls["op"], calls["dtype"])
    codes = calls["numel"].to_numpy().astype(np.int64)
    for column in columns:
        numbers, values = pd.factorize(column)
        # Numbered anew each time, so that the product stays small; -1 is a value that is missing.
        codes = pd.factorize(codes * (len(values) + 1) + numbers + 1)[0].astype(np.int64)
    return codes
