"""Reductions of one line and one size that differ in their kind: what tells them apart, and what proves nothing."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import Logs, RankLog

METRICS = ("train.py:9 main", "train.py:50 reduce_metrics")
END = ("train.py:9 main", "train.py:60 finish")
ONE_KIND = 300
"""So many calls hold one whose kind a recorder reads whatever it read before."""
READ = 257


def verdict(logs: Logs, directory: Path) -> Verdict:
    return diagnose(logs.load(directory)).verdict


def reduce(rank: RankLog, *kinds: str | None) -> None:
    for kind in kinds:
        rank.call("all_reduce", METRICS, shape=(1,), reduce_op=kind)


def job(passes: Sequence[Sequence[str | None]], odd: Sequence[Sequence[str | None]]) -> Logs:
    """Four ranks; all of them make ``passes`` and end together, but rank 2 makes those of ``odd``."""
    logs = Logs(world_size=4)
    for rank in logs:
        for kinds in odd if rank.rank == 2 else passes:
            reduce(rank, *kinds)
            rank.end_step()
        rank.barrier(END)
        rank.exit()
    return logs


# ---- order ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("missed", [0, 1, 2])
def test_a_maximum_left_out_among_sums_of_one_line_is_found_where_it_was(missed: int, tmp_path: Path) -> None:
    whole, without = ("SUM", "SUM", "MAX", "SUM"), ("SUM", "SUM", "SUM")

    found = verdict(job([whole] * 4, [without if n == missed else whole for n in range(4)]), tmp_path)

    assert (found.name, found.culprits) == ("sequence-divergence", (2,))
    assert (found.seq, found.step, found.site) == (4 * missed + 3, missed, "train.py:50")
    assert "rank 2 left out all_reduce of 1 float32 by MAX" in found.summary


def test_a_maximum_too_many_is_found_where_it_was(tmp_path: Path) -> None:
    whole = ("SUM", "MAX", "SUM")

    found = verdict(job([whole] * 4, [whole, ("SUM", "MAX", "MAX", "SUM"), whole, whole]), tmp_path)

    assert (found.name, found.culprits, found.step) == ("sequence-divergence", (2,), 1)
    assert "rank 2 issued all_reduce of 1 float32 by MAX" in found.summary


def test_a_rank_with_another_order_of_kinds_diverges_in_the_first_pass(tmp_path: Path) -> None:
    found = verdict(job([("SUM", "SUM", "MAX")] * 3, [("MAX", "SUM", "SUM")] * 3), tmp_path)

    assert (found.name, found.culprits, found.step) == ("sequence-divergence", (2,), 0)


def test_a_rank_that_leaves_out_every_maximum_diverges_in_the_first_pass(tmp_path: Path) -> None:
    found = verdict(job([("SUM", "MAX", "SUM")] * 2, [("SUM", "SUM")] * 2), tmp_path)

    assert (found.name, found.culprits, found.seq) == ("sequence-divergence", (2,), 2)


def test_another_kind_in_the_place_of_one_is_told_as_such_though_both_are_common(tmp_path: Path) -> None:
    whole, other = ("SUM", "MAX", "SUM", "MIN"), ("SUM", "MAX", "SUM", "MAX")

    found = verdict(job([whole] * 4, [whole, other, whole, whole]), tmp_path)

    assert (found.name, found.culprits, found.seq) == ("op-mismatch", (2,), 8)
    assert "rank 2 asks for MAX" in found.summary


# ---- what proves nothing --------------------------------------------------------------------------------------------
def test_kinds_that_nothing_told_are_no_difference(tmp_path: Path) -> None:
    found = verdict(job([("SUM", "MAX", "SUM")] * 3, [(None, None, None)] * 3), tmp_path)

    assert found.name == "healthy"


def test_a_kind_that_ranks_read_at_different_calls_accuses_nobody(tmp_path: Path) -> None:
    """All ask for the maximum from call 100 on; each recorder reads that when it next looks."""
    logs = Logs(world_size=4)
    for rank in logs:
        rank.group("1", [rank.rank])
        if rank.rank == 0:
            rank.call("barrier", METRICS, group="1", shape=None, dtype=None)
        for _ in range(ONE_KIND):
            reduce(rank, "MAX" if rank.calls + 1 >= READ else "SUM")
        rank.exit()

    assert verdict(logs, tmp_path).name == "healthy"


def test_first_calls_behind_a_hole_in_a_log_are_not_taken_for_read(tmp_path: Path) -> None:
    """All ask for the maximum from call 100 on; rank 0 is the first whose recorder reads that."""
    logs = Logs(world_size=4)
    for rank in logs:
        rank.group("1", [rank.rank])
        if rank.rank == 0:
            rank.call("barrier", METRICS, group="1", shape=None, dtype=None)
        for _ in range(READ - 1):
            reduce(rank, "MAX" if rank.calls + 1 >= READ else "SUM")
        rank.exit()
    logs[2].records = [record for record in logs[2].records if getattr(record, "call", 1) not in range(2, READ - 4)]

    assert verdict(logs, tmp_path).name == "healthy"


def test_a_kind_that_was_read_on_all_ranks_accuses_the_odd_one(tmp_path: Path) -> None:
    logs = Logs(world_size=4)
    for rank in logs:
        for _ in range(ONE_KIND):
            reduce(rank, "MAX" if rank.rank == 2 and rank.calls + 1 >= READ else "SUM")
        rank.exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq) == ("op-mismatch", (2,), READ)


def test_without_a_majority_of_what_was_read_nobody_is_accused(tmp_path: Path) -> None:
    """Two of four ranks were read at this call, and they differ."""
    logs = Logs(world_size=4)
    for rank in logs:
        for _ in range(ONE_KIND):
            if rank.rank in (0, 1) and rank.calls == 0:
                rank.group("1", [0, 1]).barrier(METRICS, group="1")
            reduce(rank, "MAX" if rank.rank == 2 and rank.calls + 1 >= READ else "SUM")
        rank.exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.seq) == ("op-mismatch", (), READ)
