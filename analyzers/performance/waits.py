"""Waiting and transfer of each collective: who came last, and how long the others waited for it.

Two rules. Where clocks can be compared, a rank waits from when it began to until the last member has issued the call.
Where they cannot, what its duration exceeds the shortest one by is waiting (durations are local and need no clock); the
member with the shortest came last. A message is a collective of its two sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdiag.analyzers.performance.tables import PHASES
from distdiag.deferred import deferred
from distdiag.events import MAX_RANKS

if TYPE_CHECKING:
    import ibis
else:
    ibis = deferred("ibis")

PASSED_ON = 0.5
"""A late arrival is another rank's doing where waiting for that one made up at least this share of it."""
EXACT = "decimal(28, 0)"
"""Holds moments with a rank behind them."""
LONGEST_CHAIN = 4
"""Groups through which lateness is followed to its source: tensor, expert, pipeline and data parallel."""


def waits_of(calls: ibis.Table, steps: ibis.Table, *, comparable: bool) -> ibis.Table:
    """Return the calls within whole steps, with what each member lost in them.

    More columns: last_rank, duration_ns, transfer_ns (the shortest duration), exposed_ns (how long nothing else went
    on) and waiting_ns (the part of that for which somebody had not come).
    """
    begun = _within_steps(calls, steps)
    shared = begun.group_by("group", "seq").agg(
        members=begun.count(),
        arrived_ns=begun.start_ns.max(),
        latest=begun["rank"].argmax(begun.start_ns.cast(EXACT) * MAX_RANKS - begun["rank"]),
        transfer_ns=(begun.end_ns - begun.start_ns).min(),
        shortest=first_of_least(begun["rank"], begun.end_ns - begun.start_ns),
    )
    joined = begun.join(shared, ["group", "seq"])
    duration = joined.end_ns - joined.start_ns
    late = joined.arrived_ns - joined.begun_ns if comparable else duration - joined.transfer_ns
    waiting = ibis.ifelse(joined.members > 1, ibis.greatest(late, 0), 0)
    joined = joined.mutate(
        last_rank=joined.latest if comparable else joined.shortest, duration_ns=duration, late_ns=waiting
    )
    return _exposed(joined).drop("latest", "shortest")


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


def _exposed(calls: ibis.Table) -> ibis.Table:
    """Add how long each call held its rank up: what overlaps counts once.

    What a backward issues and C++ waits for (buckets of gradients) overlaps the backward until the last of it is
    issued; before that nobody waits.
    """
    hidden = (calls.phase == PHASES["backward"]) & ~calls.waited & ~calls.p2p
    backward = ["rank", "step", "backwards"]
    last = calls.filter(hidden).group_by(backward).agg(last_ns=calls.start_ns.max())
    calls = calls.left_join(last, backward).drop(*(f"{name}_right" for name in backward))
    hidden = (calls.phase == PHASES["backward"]) & ~calls.waited & ~calls.p2p
    held_ns = ibis.ifelse(hidden, ibis.greatest(calls.begun_ns, calls.last_ns), calls.begun_ns)
    calls = calls.mutate(held_ns=held_ns).drop("last_ns")
    before = ibis.window(
        group_by=["rank", "step"],
        order_by=["held_ns", ibis.desc("start_ns"), "call"],
        preceding=(None, 1),
    )
    free_ns = calls.end_ns.max().over(before).fill_null(0)
    exposed = ibis.greatest(calls.end_ns - ibis.greatest(calls.held_ns, free_ns), 0)
    calls = calls.mutate(exposed_ns=exposed)
    return calls.mutate(waiting_ns=ibis.least(calls.late_ns, calls.exposed_ns)).drop("held_ns")


def sources_of(waits: ibis.Table) -> ibis.Table:
    """Return per collective with waiting the rank that is its source: group, seq, source.

    A rank that is late in one group because it waited in another before, in the same step, is not the source; the
    lateness is passed on to the rank that it waited for.
    """
    earlier = ibis.window(group_by=["rank", "step"], order_by=["begun_ns", "call"], preceding=(None, 1))
    waits = waits.mutate(
        suffered_ns=waits.waiting_ns.sum().over(earlier).fill_null(0),
        longest=ibis.struct({"group": waits.group, "seq": waits.seq}).argmax(waits.waiting_ns).over(earlier),
    )
    waits = waits.mutate(from_group=waits.longest["group"], from_seq=waits.longest["seq"])
    collectives = waits.group_by("group", "seq").agg(
        last=waits.last_rank.max(),
        waiting_ns=waits.waiting_ns.sum(),
        longest_ns=waits.waiting_ns.max(),
        least_ns=waits.suffered_ns.min(),
        suffered_ns=waits.suffered_ns.max(where=waits["rank"] == waits.last_rank),
        from_group=waits.from_group.max(where=waits["rank"] == waits.last_rank),
        from_seq=waits.from_seq.max(where=waits["rank"] == waits.last_rank),
    )
    inherited = collectives.suffered_ns - collectives.least_ns
    passed = (inherited >= PASSED_ON * collectives.longest_ns) & (collectives.longest_ns > 0)
    return collectives.select(
        "group",
        "seq",
        "waiting_ns",
        source=collectives.last,
        next_group=ibis.ifelse(passed, collectives.from_group, None),
        next_seq=ibis.ifelse(passed, collectives.from_seq, None),
    )


def followed(links: ibis.Table) -> ibis.Table:
    """Return the links with their sources followed one group further."""
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
        source=ibis.coalesce(joined.its_source, joined.source),
        next_group=joined.its_group,
        next_seq=joined.its_seq,
    )
