"""Dumps of hosts whose clocks are far apart accuse nobody wrongly: their moments are not compared."""

from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.importers import load
from tests.dumps import START_NS, Dumps
from tests.generated import Format, write_dumps
from tests.generator import Fault, Job, Shape, simulate

MINUTE_NS = 60_000_000_000
SHAPE = Shape(tensor=2, pipeline=2, data=4, expert=4)


def verdict_of(directory: Path, *, kind: str, group: str, skew_ns: int) -> Verdict:
    fault = Fault(kind=kind, rank=3, step=3, group=group)
    job = Job(shape=SHAPE, steps=5, fault=fault, skew_ns=skew_ns, ranks_per_host=4, seed=3)
    return diagnose(load(write_dumps(simulate(job), directory, Format(ring=300)))).verdict


FAULTS = [("host", "tensor"), ("device", "tensor"), ("transport", "data"), ("left-out", "data")]


@pytest.mark.parametrize(("kind", "group"), FAULTS)
def test_clocks_that_are_minutes_apart_change_no_verdict(tmp_path: Path, kind: str, group: str) -> None:
    right = verdict_of(tmp_path / "right", kind=kind, group=group, skew_ns=0)

    found = verdict_of(tmp_path / "wrong", kind=kind, group=group, skew_ns=3 * MINUTE_NS)

    assert (found.name, found.culprits) == (right.name, right.culprits)
    assert found.name != "insufficient-evidence"


@pytest.mark.parametrize(("kind", "group"), FAULTS[:2])
def test_dumps_that_are_further_apart_than_a_timeout_accuse_no_other_rank(
    tmp_path: Path, kind: str, group: str
) -> None:
    found = verdict_of(tmp_path, kind=kind, group=group, skew_ns=20 * MINUTE_NS)

    assert found.culprits in ((), (3,))


def long_job(skew_ns: int) -> Dumps:
    """Return dumps of four ranks on two hosts that all wait in one collective after 40 of half a minute each."""
    dumps, step_ns = Dumps(4), MINUTE_NS // 2
    for rank in dumps.ranks:
        for call in range(41):
            begun_ns = START_NS + call * step_ns + rank * 7_000_000 + skew_ns * (rank // 2)
            waits: dict[str, Any] = {"state": "started", "retired": True} if call == 40 else {}
            entry = dumps.add(rank, "all_reduce", [[40]], at_ns=begun_ns, **waits)
            if not waits:
                entry["time_discovered_completed_ns"] = START_NS + call * step_ns + 30_000_000 + skew_ns * (rank // 2)
    return dumps


@pytest.mark.parametrize("minutes", [-20, -12, 12, 20])
def test_hosts_whose_clocks_are_further_apart_than_a_timeout_are_not_called_late(tmp_path: Path, minutes: int) -> None:
    report = long_job(minutes * MINUTE_NS).diagnosed(tmp_path)

    assert (report.verdict.name, report.verdict.culprits) == ("transport-stuck", ())


def test_a_rank_that_is_late_by_the_clock_of_its_host_is_told_apart_from_a_clock_that_is_ahead(tmp_path: Path) -> None:
    dumps = long_job(12 * MINUTE_NS)
    dumps.entries[2][-1] |= {"time_created_ns": dumps.entries[2][-1]["time_created_ns"] + 11 * MINUTE_NS}
    dumps.entries[2][-1] |= {"retired": False}

    verdict = dumps.diagnosed(tmp_path).verdict

    assert (verdict.name, verdict.culprits) == ("late-rank", (2,))


@pytest.mark.parametrize(("skew_ns", "compared"), [(0, True), (MINUTE_NS, False)])
def test_clocks_of_dumps_without_ends_are_compared_by_where_collectives_begin(
    tmp_path: Path, skew_ns: int, compared: bool
) -> None:
    dumps = Dumps(4, backend="gloo")
    for rank in dumps.ranks:
        for call in range(11 if rank != 3 else 10):
            begun_ns = START_NS + call * 200_000_000 + rank * 3_000_000 + (skew_ns if rank == 2 else 0)
            entry = dumps.add(rank, "all_reduce", [[40]], at_ns=begun_ns, state="scheduled", retired=True)
            entry |= {"time_discovered_started_ns": 0, "time_discovered_completed_ns": 0, "timeout_ms": 8000}
            entry["op_id"] += call == 10 and rank < 2  # these two gave up

    run = load(dumps.write(tmp_path))

    assert (len(run.islands) < 2) is compared
    assert diagnose(run).verdict.culprits in ((), (3,))


def test_the_last_rank_need_not_have_called_anything(tmp_path: Path) -> None:
    dumps = long_job(12 * MINUTE_NS)
    dumps.entries[3].clear()

    run = load(dumps.write(tmp_path))

    assert run.ranks == (0, 1, 2, 3)
    assert run.calls.groupby("seq")["end_ns"].agg(lambda ends: ends.max() - ends.min()).max() < MINUTE_NS
