"""The wait-for graph on plain values."""

import random

from hypothesis import given
from hypothesis import strategies as st

from distdiag.analyzers.investigation.waitfor import Wait, WaitKind, behind, standstill


def wait(
    group: str, waiters: set[int], absent: set[int], *, since: int = 0, kind: WaitKind = WaitKind.COLLECTIVE
) -> Wait:
    return Wait(
        kind=kind,
        group=group,
        number=1,
        waiters=frozenset(waiters),
        absent=frozenset(absent),
        since_ns=since,
    )


def test_waiting_ends_at_the_rank_that_waits_for_nobody() -> None:
    found = standstill([wait("tp", {0}, {1}), wait("pp", {1}, {2}), wait("dp", {2}, {3})])

    assert found.sinks == {3}
    assert found.cycle == ()


def test_a_circle_over_two_groups_has_no_end() -> None:
    first, second = wait("a", {0}, {1, 2}), wait("b", {1, 2}, {0})

    found = standstill([first, second])

    assert found.sinks == frozenset()
    assert set(found.cycle) == {first, second}


def test_the_smallest_circle_is_taken() -> None:
    long = [wait("a", {0}, {1}), wait("b", {1}, {2}), wait("c", {2}, {0})]
    short = [wait("d", {3}, {4}), wait("e", {4}, {3})]

    assert set(standstill([*long, *short]).cycle) == set(short)


def test_ranks_that_all_came_are_no_sinks_and_no_circle() -> None:
    found = standstill([wait("a", {0, 1, 2}, set())])

    assert (found.sinks, found.cycle) == (frozenset(), ())


def test_all_that_wait_through_others_are_behind_the_culprit() -> None:
    waits = [wait("tp", {0}, {1}), wait("pp", {1}, {2}), wait("other", {5}, {6})]

    assert behind(waits, {2}) == {0, 1}


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 6), min_size=1), st.sets(st.integers(0, 6))), max_size=8),
    st.permutations(range(7)),
    st.randoms(),
)
def test_relabelling_ranks_relabels_the_sinks(
    operations: list[tuple[set[int], set[int]]], labels: list[int], order: random.Random
) -> None:
    waits = [wait(str(n), waiters, absent - waiters) for n, (waiters, absent) in enumerate(operations)]
    relabelled = [
        wait(each.group, {labels[r] for r in each.waiters}, {labels[r] for r in each.absent}) for each in waits
    ]
    order.shuffle(relabelled)

    before, after = standstill(waits), standstill(relabelled)

    assert after.sinks == {labels[rank] for rank in before.sinks}
    assert len(after.cycle) == len(before.cycle)
