"""Kinds of reductions that are compared while a job runs: what tells members apart, and what proves nothing."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from distdiag import events
from distdiag.live.alarms import Kind
from distdiag.thinning import READ_AT_FIRST, READ_EACH
from tests.logs import RankLog
from tests.watching import Watched, raised

METRICS = "train.py:50 reduce_metrics"


def reduce(log: RankLog, *kinds: str) -> None:
    for kind in kinds:
        log.call("all_reduce", METRICS, shape=(1,), reduce_op=kind)


def reducing(
    directory: Path, passes: Sequence[Sequence[str]], odd: Sequence[Sequence[str]], *, ranks: int = 4
) -> Watched:
    """Ranks that train, and reduce metrics after each step; rank 2, the last of fewer, makes those of ``odd``."""
    watched = Watched(directory, world_size=ranks)
    for usual, other in zip(passes, odd, strict=True):
        watched.train(steps=1)
        for log in watched.logs:
            reduce(log, *(other if log.rank == min(2, ranks - 1) else usual))
    return watched


def test_a_maximum_left_out_among_sums_is_told_where_it_was(tmp_path: Path) -> None:
    whole = ("SUM", "SUM", "MAX", "SUM")
    watched = reducing(tmp_path, [whole] * 4, [whole, ("SUM", "SUM", "SUM"), whole, whole])

    (alarm,) = raised(watched.look_twice())

    assert (alarm.kind, alarm.condition.ranks) == (Kind.DIVERGENCE, (2,))
    assert alarm.condition.summary == (
        "call 9 of group default_pg is not the same on all ranks: "
        "ranks 0-1,3 issued all_reduce of 1 float32 by MAX, rank 2 issued all_reduce of 1 float32 by SUM"
    )


def test_a_kind_of_one_of_two_ranks_is_told_and_nobody_is_named(tmp_path: Path) -> None:
    watched = reducing(tmp_path, [("SUM",)] * 2, [("SUM",), ("MAX",)], ranks=2)

    (alarm,) = raised(watched.look_twice())

    assert (alarm.kind, alarm.condition.ranks) == (Kind.DIVERGENCE, ())


def test_the_first_of_several_is_told_whoever_is_read_first(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=5)
    for log in watched.logs:
        reduce(log, "SUM", "MIN" if log.rank == 3 else "MAX", "MIN" if log.rank == 1 else "MAX")

    (alarm,) = raised(watched.look_twice())

    assert (alarm.condition.incident, alarm.condition.ranks) == ("divergence 0 2", (3,))


@pytest.mark.parametrize("kinds", [("SUM", "MAX", "SUM"), ("SUM",), ("AVG", "MIN")])
def test_kinds_that_all_ranks_ask_for_alike_are_no_alarm(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    watched = reducing(tmp_path, [kinds] * 200, [kinds] * 200)

    assert raised(watched.look_twice()) == []


# ---- what proves nothing --------------------------------------------------------------------------------------------
def test_a_kind_that_was_taken_over_from_earlier_calls_is_not_compared(tmp_path: Path) -> None:
    """All ask for the maximum from one call on; rank 0, which has made one call more, is the first to read it."""
    watched = Watched(tmp_path, world_size=4)
    for log in watched.logs:
        log.group("1", [log.rank])
        if log.rank == 0:
            log.call("barrier", METRICS, group="1", shape=None, dtype=None)
        for _ in range(READ_EACH + 40):
            reduce(log, "MAX" if log.calls + 1 > READ_EACH else "SUM")

    assert raised(watched.look_twice()) == []


def test_a_kind_that_was_read_late_on_all_ranks_is_compared(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=4)
    for log in watched.logs:
        for _ in range(READ_EACH + 40):
            reduce(log, "MAX" if log.rank == 2 and log.calls + 1 > READ_EACH else "SUM")

    (alarm,) = raised(watched.look_twice())

    assert (alarm.condition.incident, alarm.condition.ranks) == (f"divergence 0 {READ_EACH + 1}", (2,))


def test_first_calls_that_were_seen_of_a_log_with_a_hole_are_not_taken_for_read(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=4)
    for log in watched.logs:
        for _ in range(READ_AT_FIRST + 4):
            reduce(log, "SUM")
        number = 8 if log.rank == 2 else 3
        log.records = [record for record in log.records if getattr(record, "call", 1) not in range(2, number)]
        log.calls = 20 + number
        reduce(log, "MAX" if log.rank != 2 else "SUM")

    assert raised(watched.look_twice()) == []


# ---- signatures that are written again ------------------------------------------------------------------------------
@pytest.mark.parametrize("differs", ["kind", "size"])
def test_a_call_whose_signature_is_written_again_counts_once(tmp_path: Path, differs: str) -> None:
    """Each segment of a log holds the signatures of its calls, behind the first call of each."""
    watched = Watched(tmp_path, world_size=2)
    watched.train(steps=1)
    for log in watched.logs:
        odd = log.rank == 1
        log.call(
            "all_reduce",
            METRICS,
            shape=(2 if odd and differs == "size" else 1,),
            reduce_op="MAX" if odd and differs == "kind" else "SUM",
            pending=True,
        )
    again = next(r for r in reversed(watched.logs[0].records) if isinstance(r, events.Signature))
    watched.logs[0].add(again)

    (alarm,) = raised(watched.look_twice())

    assert alarm.condition.ranks == ()
