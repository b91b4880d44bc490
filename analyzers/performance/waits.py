"""Waiting and transfer of each collective: who came last, and how long the others waited for it.

Two rules. Where clocks can be compared, a rank waits from when it began to until the last member has issued the call.
Where they cannot, what its duration exceeds the shortest one by is waiting (durations are local and need no clock); the
member with the shortest came last. A message is a collective of its two sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from distdiag.analyzers.performance.columns import PHASES
from distdiag.deferred import deferred
from distdiag.engine import Engine
from distdiag.events import MAX_RANKS

if TYPE_CHECKING:
    import ibis
else:
    ibis = deferred("ibis")

PASSED_ON = 0.5
"""A late arrival is another rank's doing where waiting for that one made up at least this share of it."""
EXACT = "decimal(28, 0)"
"""Holds moments with a rank behind them."""
LARGEST = (1 << 63) - 1
"""Of such numbers of 64 bits; a day of a thousand ranks stays far below."""
COLUMNS = (
    "rank", "step", "call", "group", "seq", "kind", "phase", "begun_ns", "members", "last_rank", "transfer_ns",
    "exposed_ns", "waiting_ns",
)  # fmt: skip
TURNS = 1 << 30
"""Calls: as many keep their order where they hold a rank from one moment on. With keys that short the engine takes
three quarters of the time."""
_BACKWARD = ["rank", "step", "backwards"]
LONGEST_CHAIN = 4
"""Groups through which lateness is followed to its source: tensor, expert, pipeline and data parallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """How a time and the rank it is of make one number: the least and the greatest of them tell both."""

    origin_ns: int
    ranks: int
    number: str
    """Type that holds the numbers."""

    def last(self, moment_ns: ibis.Value, rank: ibis.Value) -> ibis.Value:
        """Return the rank with the latest moment, of equal ones the first."""
        latest = ((moment_ns - self.origin_ns).cast(self.number) * self.ranks + (self.ranks - 1 - rank)).max()
        return (self.ranks - 1 - latest % self.ranks).cast("int32")

    def shortest(self, duration_ns: ibis.Value, rank: ibis.Value) -> ibis.Value:
        """Return the rank with the shortest duration, of equal ones the first."""
        return ((duration_ns.cast(self.number) * self.ranks + rank).min() % self.ranks).cast("int32")


def _order_of(engine: Engine, calls: ibis.Table) -> _Order:
    last_ns = ibis.greatest(calls.start_ns, calls.end_ns).max()
    known = engine.frame(calls.aggregate(first=calls.start_ns.min(), last=last_ns, rank=calls["rank"].max())).iloc[0]
    if pd.isna(known["first"]):
        return _Order(origin_ns=0, ranks=1, number="int64")
    first, last, ranks = int(known["first"]), int(known["last"]), int(known["rank"]) + 1
    fits = (last - first + 1) * ranks <= LARGEST
    return _Order(origin_ns=first, ranks=ranks, number="int64" if fits else EXACT)


def waits_of(engine: Engine, calls: ibis.Table, steps: ibis.Table, *, comparable: bool) -> ibis.Table:
    """Return the calls within whole steps, with what each member lost in them.

    Columns: rank, step, call, group, seq, kind, phase, begun_ns, members, last_rank, transfer_ns (the shortest
    duration), exposed_ns (how long nothing else went on) and waiting_ns (the part of that for which somebody had not
    come).
    """
    # Overlaps are sorted out first, while rows are narrow.
    begun = _exposed(_within_steps(calls, steps), _unattended(engine, calls))
    order = _order_of(engine, calls)
    rank, duration = begun["rank"], begun.end_ns - begun.start_ns
    shared = begun.group_by("group", "seq").agg(
        members=begun.count(),
        arrived_ns=begun.start_ns.max(),
        last_rank=order.last(begun.start_ns, rank) if comparable else order.shortest(duration, rank),
        transfer_ns=duration.min(),
    )
    joined = begun.join(shared, ["group", "seq"])
    late = joined.arrived_ns - joined.begun_ns if comparable else joined.end_ns - joined.start_ns - joined.transfer_ns
    waiting = ibis.ifelse(joined.members > 1, ibis.least(ibis.greatest(late, 0), joined.exposed_ns), 0)
    return joined.mutate(waiting_ns=waiting).select(*COLUMNS)


def first_of_least(rank: ibis.Value, value_ns: ibis.Value) -> ibis.Value:
    """Return the rank with the least value, of equal ones the first: engines would take any."""
    return rank.argmin(value_ns.cast(EXACT) * MAX_RANKS + rank)


def _within_steps(calls: ibis.Table, steps: ibis.Table) -> ibis.Table:
    """Return the calls of whole steps; an end that was only seen later than the step ended is put there."""
    spans = steps.select("rank", "step", from_ns=steps.start_ns, to_ns=steps.end_ns)
    joined = calls.join(spans, ["rank", "step"])
    return joined.mutate(
        begun_ns=ibis.greatest(joined.begun_ns, joined.from_ns),
        end_ns=ibis.greatest(ibis.least(joined.end_ns, joined.to_ns), joined.start_ns),
    ).drop("from_ns", "to_ns")


def _hidden(calls: ibis.Table) -> ibis.Value:
    """Return whether a backward issued the call, and C++ waits for it (buckets of gradients)."""
    return (calls.phase == PHASES["backward"]) & ~calls.waited & ~calls.p2p


def _in_background(calls: ibis.Table) -> ibis.Value:
    """Return whether nobody was seen to wait for the call: it may go on for steps."""
    return ~calls.waited & ~_hidden(calls) & ~calls.p2p


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unattended:
    """Which calls there are that their thread did not wait for: each kind takes a pass of its own."""

    last_in_backward: ibis.Table | None
    """When the last of those that C++ waits for was issued, of each backward; None where there are none."""
    in_background: bool


def _unattended(engine: Engine, calls: ibis.Table) -> _Unattended:
    hidden, background = _hidden(calls), _in_background(calls)
    known = engine.frame(calls.aggregate(hidden=hidden.any(), background=background.any())).iloc[0]
    last = calls.filter(hidden).group_by(*_BACKWARD).agg(last_ns=lambda each: each.start_ns.max())
    return _Unattended(
        last_in_backward=last if known["hidden"] is not None and bool(known["hidden"]) else None,
        in_background=known["background"] is not None and bool(known["background"]),
    )


def _exposed(calls: ibis.Table, unattended: _Unattended) -> ibis.Table:
    """Add how long each call held its rank up: what overlaps counts once.

    What a backward issues and C++ waits for overlaps the backward until the last of it is issued; before that nobody
    waits. What else nobody was seen to wait for holds its rank until that issues the next call, at most.
    """
    held_ns = calls.begun_ns
    if unattended.last_in_backward is not None:
        calls = calls.left_join(unattended.last_in_backward, _BACKWARD).drop(*(f"{name}_right" for name in _BACKWARD))
        held_ns = ibis.ifelse(_hidden(calls), ibis.greatest(calls.begun_ns, calls.last_ns), calls.begun_ns)
    calls = calls.mutate(held_ns=held_ns, turn=(calls.call % TURNS).cast("int32"))
    by_turns: Any = {"group_by": ["rank", "step"], "order_by": ["held_ns", ibis.desc("turn")]}
    let_go_ns = calls.end_ns
    if unattended.in_background:
        next_ns = calls.held_ns.lead().over(ibis.window(**by_turns)).fill_null(calls.end_ns)
        let_go_ns = ibis.ifelse(_in_background(calls), ibis.least(calls.end_ns, next_ns), calls.end_ns)
    calls = calls.mutate(let_go_ns=let_go_ns)
    free_ns = calls.let_go_ns.max().over(ibis.window(**by_turns, preceding=(None, 1))).fill_null(0)
    exposed = ibis.greatest(calls.let_go_ns - ibis.greatest(calls.held_ns, free_ns), 0)
    return calls.mutate(exposed_ns=exposed)


def passed_on(engine: Engine, waits: ibis.Table, noise_ns: float) -> pd.DataFrame:
    """Return the waiting that is not the doing of who came last: by that rank (``last``) and its ``source``, in
    ``waiting_ns``.

    A rank that is late in one group because it waited in another before, in the same step, is not the source; the
    lateness is passed on to the rank that it waited for. Waits up to ``noise_ns`` are not followed.
    """
    links = engine.materialised(_links(engine, waits, noise_ns))
    for _ in range(LONGEST_CHAIN - 1):
        links = engine.materialised(_followed(links))
    return engine.frame(links.group_by("last", "source").agg(waiting_ns=links.waiting_ns.sum()))


def _links(engine: Engine, waits: ibis.Table, noise_ns: float) -> ibis.Table:
    """Return per collective whose last rank had waited before: group, seq, waiting_ns, last, the rank that it waited
    for (source) and in which collective (next_group, next_seq)."""
    long = waits.filter(waits.waiting_ns > noise_ns).select("group", "seq").distinct()
    members = engine.materialised(waits.semi_join(long, ["group", "seq"]))
    late = members.group_by("group", "seq").agg(
        waiting_ns=members.waiting_ns.sum(), longest_ns=members.waiting_ns.max(), last=members.last_rank.max()
    )
    near = waits.semi_join(members.select("rank", "step").distinct(), ["rank", "step"])
    earlier = ibis.window(group_by=["rank", "step"], order_by=["begun_ns", "call"], preceding=(None, 1))
    suffered_ns, longest_ns = near.waiting_ns.sum().over(earlier), near.waiting_ns.max().over(earlier)
    near = engine.materialised(near.mutate(suffered_ns=suffered_ns.fill_null(0), before_ns=longest_ns.fill_null(0)))
    members = near.join(late.drop("waiting_ns"), ["group", "seq"])
    is_last = members["rank"] == members["last"]
    collectives = members.group_by("group", "seq").agg(
        least_ns=members.suffered_ns.min(),
        **{name: members[name].max(where=is_last) for name in ("suffered_ns", "before_ns", "step", "begun_ns", "call")},
    )
    joined = late.join(collectives, ["group", "seq"])
    inherited = joined.suffered_ns - joined.least_ns
    return _with_sources(joined.filter(inherited >= PASSED_ON * joined.longest_ns), near)


def _with_sources(late: ibis.Table, near: ibis.Table) -> ibis.Table:
    """Return the collectives whose last rank is ``late`` because of others, with the one it waited longest in before.

    ``late`` tells of each the last rank, and its step, begun_ns, call and longest wait before; ``near`` holds all calls
    of such steps. Of waits that are equally long the first one counts.
    """
    waited = near.select(
        "step",
        last=near["rank"],
        before_ns=near.waiting_ns,
        its_begun_ns=near.begun_ns,
        its_call=near.call,
        source=near.last_rank,
        next_group=near.group,
        next_seq=near.seq,
    )
    both = late.join(waited, ["last", "step", "before_ns"])
    earlier = (both.its_begun_ns < both.begun_ns) | ((both.its_begun_ns == both.begun_ns) & (both.its_call < both.call))
    by_turns: Any = {"group_by": ["group", "seq"], "order_by": ["its_begun_ns", "its_call"]}
    found = both.filter(earlier).mutate(place=ibis.row_number().over(ibis.window(**by_turns)))
    found = found.filter(found.place == 0)
    return found.select("group", "seq", "waiting_ns", "last", "source", "next_group", "next_seq")


def _followed(links: ibis.Table) -> ibis.Table:
    """Return the links with their sources followed further."""
    origin = links.select(
        at_group=links.group,
        at_seq=links.seq,
        its_source=links.source,
        its_group=links.next_group,
        its_seq=links.next_seq,
    )
    joined = links.left_join(origin, [links.next_group == origin.at_group, links.next_seq == origin.at_seq])
    return joined.select(
        "group",
        "seq",
        "waiting_ns",
        "last",
        source=ibis.coalesce(joined.its_source, joined.source),
        next_group=joined.its_group,
        next_seq=joined.its_seq,
    )
