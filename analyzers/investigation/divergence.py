"""The place where some members of a group left the others, and what both sides issued there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from distdiag.analyzers.investigation.align import Departure, Kind, Stream
from distdiag.analyzers.investigation.issued import Issued, issued
from distdiag.analyzers.investigation.loops import Labels
from distdiag.analyzers.investigation.rows import records
from distdiag.analyzers.investigation.streams import GroupCalls, Member
from distdiag.events import NUMBER_UNKNOWN
from distdiag.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place where some members of a group left the others."""

    group: GroupCalls
    kind: Kind | None
    expected: Issued | None
    """What the others issued there."""
    made: Issued | None
    """What the odd ranks issued there, or next."""
    odd: tuple[int, ...]
    others: tuple[int, ...]
    decided: bool
    """Whether the others are a strict majority, so that the odd ones can be named."""
    reference: Stream
    stream: Stream
    where: Departure
    interval_ns: tuple[int, int]
    """When it happened: a call among equal ones may have been left out at any of them."""
    paired_silently: int
    """How many calls were paired with unrelated ones before anything failed."""
    weak: bool = False
    """Nothing that had to agree differs, and no step says so either: a death nearby explains as much."""

    peers: tuple[int, ...] = ()
    """Ranks that did in groups of their own what the others did, where these are no majority by themselves."""
    each_apart: bool = False
    """Whether no two of three members or more issued the same calls, however far each came."""
    passes: str = ""
    """The step that had more or fewer passes on the odd ranks, in words, where it is one."""
    shapes: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """What each member passed to the call at which they went apart, where there is no majority."""

    @property
    def time_ns(self) -> int:
        """Return when the odd ranks left."""
        return self.interval_ns[1]

    @property
    def seq(self) -> int:
        """Return the number of the first call that both sides did not issue alike."""
        return min((call.seq for call in (self.expected, self.made) if call is not None), default=NUMBER_UNKNOWN)

    @property
    def only_combines_otherwise(self) -> bool:
        """Return whether both sides made one call, and differ in the kind of its reduction alone."""
        expected, made = self.expected, self.made
        if expected is None or made is None or expected.reduce_op == made.reduce_op:
            return False
        alike = (expected.op, expected.payload, expected.root) == (made.op, made.payload, made.root)
        return alike and self.kind in (Kind.INSTEAD, None)

    @property
    def unmatched(self) -> Issued | None:
        """Return the call that one side made and the other did not."""
        return self.expected if self.kind is Kind.LEFT_OUT else self.made or self.expected


def divergence_at(
    run: Run,
    calls: pd.DataFrame,
    group: GroupCalls,
    labels: Labels,
    where: Departure,
    *,
    reference: tuple[int, Stream],
    odd: tuple[int, Stream],
    odd_ranks: Sequence[int],
    others: Sequence[int],
    decided: bool,
    weak: bool = False,
) -> Divergence:
    """Return the divergence that a departure of ``odd`` from ``reference``, each with its rank, comes down to."""
    expected = _call(run, calls, group.by_rank[reference[0]], where.reference)
    made = _call(run, calls, group.by_rank[odd[0]], where.odd)
    slack = _slack(reference[1], where) if where.kind is Kind.LEFT_OUT else 0
    if expected is not None and labels.in_all(odd[0]).forwards < labels.at(expected).forwards:
        slack = where.odd  # a pass fewer: which one is not to be seen in the calls
    before = _call(run, calls, group.by_rank[odd[0]], where.odd - slack - 1)
    moment = made or expected
    end_ns = moment.start_ns if moment is not None else 0
    return Divergence(
        group=group,
        kind=where.kind,
        expected=expected,
        made=made,
        odd=tuple(sorted(rank for rank in odd_ranks if len(group.by_rank[rank].codes) >= where.odd)),
        others=tuple(others),
        decided=decided,
        reference=reference[1],
        stream=odd[1],
        where=where,
        interval_ns=(before.start_ns if before is not None else 0, end_ns),
        paired_silently=_paired(group, reference[1], odd[1], where),
        weak=weak,
        shapes={} if decided else _shapes_at(calls, group, where.reference),
    )


def _shapes_at(calls: pd.DataFrame, group: GroupCalls, position: int) -> Mapping[int, tuple[tuple[int, ...], ...]]:
    rows = {rank: int(each.rows[position]) for rank, each in group.by_rank.items() if position < len(each.rows)}
    shapes = calls["shapes"].iloc[list(rows.values())]
    return dict(zip(rows, shapes.tolist(), strict=True))


def _paired(group: GroupCalls, reference: Stream, odd: Stream, where: Departure) -> int:
    """Return how many calls were paired with unrelated ones before something failed, or the first stream ended."""
    shortest = min(len(reference.tokens), len(odd.tokens))
    stop = shortest if group.unequal is None else min(group.unequal, shortest)
    return max(0, stop - max(where.reference, where.odd))


def _call(run: Run, calls: pd.DataFrame, member: Member, position: int) -> Issued | None:
    if not 0 <= position < len(member.rows):
        return None
    row = int(member.rows[position])
    return next(issued(run, each) for each in records(calls.iloc[row : row + 1]))


def _slack(reference: Stream, where: Departure) -> int:
    """Return how many calls earlier the same calls may as well have been left out: the stream would read the same."""
    tokens, slack = reference.tokens, 0
    while slack < where.reference:
        candidate = where.reference - slack - 1
        if candidate + where.calls >= len(tokens) or tokens[candidate] != tokens[candidate + where.calls]:
            break
        slack += 1
    return slack
