"""Dumps of real jobs whose faults are known: GPUs that stopped, processes that held the GIL, small gloo programs."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.importers import load

DUMPS = Path(__file__).parents[2].parent / "shared" / "data" / "flight_recorder"

pytestmark = pytest.mark.skipif(not DUMPS.is_dir(), reason="the shared dumps are not here")


def verdict_of(name: str) -> Verdict:
    return diagnose(load(DUMPS / name)).verdict


@pytest.mark.parametrize(
    ("name", "verdict", "culprits"),
    [
        ("nccl/gpu_error_1st", "device-stuck", (12, 14)),
        ("nccl/lock_gil_1st", "rank-missing", (9, 14)),
        ("gloo/missing", "rank-missing", (3,)),
        ("gloo/type", "op-mismatch", ()),
        ("gloo/ok", "healthy", ()),
        ("gloo/subpg", "healthy", ()),
        ("gloo/size", "logs-missing", ()),
    ],
)
def test_the_known_fault_is_found_and_nobody_else_is_accused(
    name: str, verdict: str, culprits: tuple[int, ...]
) -> None:
    found = verdict_of(name)

    assert (found.name, found.culprits) == (verdict, culprits)


def test_everybody_else_is_a_victim_of_the_devices_that_stopped() -> None:
    found = verdict_of("nccl/gpu_error_1st")

    assert found.victims == tuple(rank for rank in range(16) if rank not in (12, 14))


def test_what_disagrees_is_shown_with_its_lines() -> None:
    found = verdict_of("gloo/type")

    assert {rank: site.rpartition("/")[2] for rank, site in found.sites.items()} == {0: "gen.py:38", 1: "gen.py:39"}
