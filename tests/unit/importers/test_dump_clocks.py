"""Dumps of hosts whose clocks are far apart accuse nobody wrongly: their moments are not compared."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.importers import load
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
