"""Dumps on which the upstream analyzer fails or accuses the wrong rank, and what has to be said of them."""

import time
from pathlib import Path
from typing import Any

import pytest

from distdiag.findings import Confidence, Report
from distdiag.importers import load
from tests.dumps import START_NS, STEP_NS, Dumps

PRIVATE = ("7", "private")
SECOND_NS = 1_000_000_000


def trained(world_size: int = 4, calls: int = 5, **options: str) -> Dumps:
    """Return dumps of a job that reduced gradients a few times."""
    dumps = Dumps(world_size, **options)
    for _ in range(calls):
        dumps.everywhere("all_reduce")
    return dumps


def test_a_dump_that_is_older_than_another_is_no_error(tmp_path: Path) -> None:
    dumps = trained(2)
    dumps.add(0, "all_reduce", state="completed")
    dumps.add(1, "all_reduce", state="started")

    assert dumps.diagnosed(tmp_path).verdict.name == "healthy"


@pytest.mark.parametrize("odd", [0, 3])
def test_the_majority_decides_who_issued_the_wrong_operation(tmp_path: Path, odd: int) -> None:
    dumps = trained()
    for rank in dumps.ranks:
        op = "broadcast" if rank == odd else "all_reduce"
        dumps.add(rank, op, state="started", frames=[{"name": "f", "filename": f"/job/{op}.py", "line": 7}])

    verdict = dumps.diagnosed(tmp_path).verdict

    assert (verdict.culprits, verdict.seq) == ((odd,), 6)
    assert verdict.name in ("op-mismatch", "sequence-divergence")


def test_a_ring_that_holds_less_of_one_rank_is_no_missing_rank(tmp_path: Path) -> None:
    dumps = Dumps(2)
    dumps.group(PRIVATE[0], (0,), PRIVATE[1])
    for number in range(6):
        dumps.everywhere("all_reduce")
        for _ in range(100 if number == 0 else 0):
            dumps.add(0, "all_reduce", group=PRIVATE)
    dumps.entries[0] = dumps.entries[0][-3:]

    assert dumps.diagnosed(tmp_path).verdict.name == "healthy"


def test_a_missing_rank_is_named_and_not_passed(tmp_path: Path) -> None:
    dumps = trained()
    for rank in (0, 1, 3):
        dumps.add(rank, "all_reduce", state="started")

    verdict = dumps.diagnosed(tmp_path).verdict

    assert (verdict.name, verdict.culprits, verdict.victims) == ("rank-missing", (2,), (0, 1, 3))
    assert (verdict.group, verdict.seq) == ("default_pg", 6)


def test_a_message_in_a_larger_group_needs_two_ranks_only(tmp_path: Path) -> None:
    dumps = trained()
    dumps.add(0, "send 0->1")
    dumps.add(1, "recv 1<-0")
    dumps.everywhere("all_reduce")

    assert dumps.diagnosed(tmp_path).verdict.name == "healthy"


def test_numbers_of_messages_are_not_those_of_collectives(tmp_path: Path) -> None:
    dumps = Dumps(2)
    dumps.add(0, "send 0->1")
    dumps.add(1, "recv 1<-0")
    dumps.everywhere("all_reduce")

    assert dumps.diagnosed(tmp_path).verdict.name == "healthy"


def exchange(dumps: Dumps, state: str) -> None:
    """Append the exchange of both ranks that pipeline schedules make as one batch."""
    for rank in dumps.ranks:
        dumps.add(rank, f"send {rank}->{1 - rank}", state="scheduled", is_p2p=True)
        dumps.add(rank, f"recv {rank}<-{1 - rank}", state="scheduled", is_p2p=True, same_seq=True)
        dumps.add(rank, "coalesced", (), (), state=state, is_p2p=True, same_seq=True)


def test_a_batch_of_messages_both_ways_is_healthy_once_its_end_completed(tmp_path: Path) -> None:
    dumps = trained(2)
    exchange(dumps, "completed")

    assert dumps.diagnosed(tmp_path).verdict.name == "healthy"


def test_a_batch_of_messages_both_ways_that_does_not_end_accuses_nobody(tmp_path: Path) -> None:
    dumps = trained(2)
    exchange(dumps, "started")

    verdict = dumps.diagnosed(tmp_path).verdict

    assert (verdict.name, verdict.culprits) == ("transport-stuck", ())


def test_an_unknown_operation_loses_nothing_else(tmp_path: Path) -> None:
    dumps = trained()
    dumps.everywhere("frobnicate_v2")
    for rank in (0, 1, 3):
        dumps.add(rank, "all_reduce", state="started")

    assert dumps.diagnosed(tmp_path).verdict.culprits == (2,)


def test_a_missing_dump_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    dumps = trained()
    dumps.everywhere("all_reduce", state="started")

    report = dumps.diagnosed(tmp_path, without=[2])

    assert "rank 2" in _said(report)
    assert report.verdict.name in ("insufficient-evidence", "logs-missing", "rank-missing")


def test_a_missing_dump_does_not_hide_a_missing_rank(tmp_path: Path) -> None:
    dumps = trained()
    for rank in (0, 1):
        dumps.add(rank, "all_reduce", state="started")

    report = dumps.diagnosed(tmp_path, without=[3])

    assert report.verdict.name == "rank-missing"
    assert report.verdict.culprits == (2,)
    assert report.verdict.confidence is not Confidence.HIGH


def test_all_in_one_operation_that_does_not_end_is_a_finding(tmp_path: Path) -> None:
    dumps = trained()
    dumps.everywhere("all_reduce", state="started")

    verdict = dumps.diagnosed(tmp_path).verdict

    assert (verdict.name, verdict.culprits, verdict.seq) == ("transport-stuck", (), 6)


def test_what_the_devices_had_begun_is_shown_and_accuses_nobody(tmp_path: Path) -> None:
    dumps = trained()
    for rank in dumps.ranks:
        dumps.add(rank, "all_reduce", state="scheduled" if rank == 2 else "started")

    verdict = dumps.diagnosed(tmp_path).verdict

    assert (verdict.name, verdict.culprits) == ("transport-stuck", ())
    assert any("ranks 0-1,3 had begun it, those of rank 2 had not" in line for line in verdict.evidence)


def test_splits_that_no_dump_tells_are_said_to_be_unknown(tmp_path: Path) -> None:
    dumps = trained(2)
    dumps.everywhere("all_to_all", ((4,),), ((4,),), state="started")

    verdict = dumps.diagnosed(tmp_path).verdict

    assert verdict.name == "transport-stuck"
    assert any("splits" in line for line in verdict.evidence)


def test_ranks_of_several_schemas_are_compared(tmp_path: Path) -> None:
    dumps = trained()
    dumps.versions[1] = "2.9"
    dumps.versions[3] = "2.4"
    for rank in (0, 1, 3):
        dumps.add(rank, "all_reduce", state="started")

    assert dumps.diagnosed(tmp_path).verdict.culprits == (2,)


def test_splits_that_do_not_fit_are_found_although_totals_agree(tmp_path: Path) -> None:
    dumps = trained(2)
    splits = {0: ([3, 1], [2, 2]), 1: ([1, 3], [2, 2])}
    for rank, (sends, expects) in splits.items():
        told: dict[str, Any] = {"input_split_sizes": sends, "output_split_sizes": expects, "state": "started"}
        dumps.add(rank, "all_to_all_single", ((4,),), ((4,),), **told)

    assert dumps.diagnosed(tmp_path).verdict.name == "split-mismatch"


def test_a_wrong_size_on_all_ranks_alike_is_found(tmp_path: Path) -> None:
    dumps = trained(2)
    dumps.everywhere("_all_gather_base", ((8,),), ((24,),), state="started")

    verdict = dumps.diagnosed(tmp_path).verdict

    assert (verdict.name, verdict.culprits) == ("shape-mismatch", ())


def test_a_straggler_one_operation_behind_is_one_finding_that_names_it(tmp_path: Path) -> None:
    dumps = trained()
    for rank in dumps.ranks:
        dumps.add(rank, "all_reduce", state="started" if rank == 1 else "completed")
    for rank in (0, 2, 3):
        dumps.add(rank, "all_reduce", state="started")

    report = dumps.diagnosed(tmp_path)

    assert [finding.culprits for finding in report.findings] == [(1,)]
    assert report.verdict.name == "rank-missing"


def test_a_dump_made_while_the_job_runs_accuses_nobody(tmp_path: Path) -> None:
    dumps = trained()
    now_ns = time.time_ns()
    for rank in dumps.ranks:
        for number, entry in enumerate(dumps.entries[rank]):
            entry["time_created_ns"] = now_ns - SECOND_NS + number * STEP_NS
            entry["time_discovered_completed_ns"] = entry["time_created_ns"] + STEP_NS
    for rank in (0, 1, 3):
        dumps.add(rank, "all_reduce", state="started", at_ns=now_ns)

    assert dumps.diagnosed(tmp_path).verdict.name == "healthy"


def test_the_order_of_files_changes_nothing(tmp_path: Path) -> None:
    dumps = trained()
    for rank in dumps.ranks:
        dumps.add(rank, "broadcast" if rank == 2 else "all_reduce", state="started")
    directory = dumps.write(tmp_path / "one")
    other = tmp_path / "other"
    other.mkdir()
    for rank in reversed(dumps.ranks):
        (other / f"a{9 - rank}_rank_{rank}").write_bytes((directory / f"nccl_trace_rank_{rank}").read_bytes())

    first, second = load(directory), load(other)

    assert first.calls.equals(second.calls)
    assert first.calls["start_ns"].min() == START_NS


def _said(report: Report) -> str:
    return " ".join([report.verdict.summary, *report.verdict.evidence, *(f.summary for f in report.findings)])
