"""Traces that other devices, tools and schedules wrote: how they are read, and what they leave open."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Confidence, Report
from distdiag.importers import load
from tests.traces import EPOCH_US, Trace

SLOW = 1
WORLD = 3
STEP_US = 2000
GROUP: dict[str, Any] = {"Group size": WORLD, "Process Group Ranks": "[0, 1, 2]"}


def trained(
    rank: int, *, slow: int = SLOW, signed: bool = True, named: bool = True, origin_us: int = EPOCH_US, **group: Any
) -> Trace:
    """Return the trace of a rank that computes twice as long as the others where it is the slow one."""
    trace = Trace(rank=rank if signed else None, world_size=WORLD if signed else None, origin_us=origin_us)
    busy = 1200 if rank == slow else 600
    for step in range(6):
        if named:
            trace.step(step, at=step * STEP_US, lasts=STEP_US - 10)
        trace.kernel("gemm", at=step * STEP_US + 20, lasts=busy)
        trace.all_reduce(at=step * STEP_US + 20 + busy, lasts=40 + (1200 - busy), **group)
    return trace


def report_of(directory: Path, name: str = "rank{}.json", change: Callable[[str], str] = str, **options: Any) -> Report:
    for rank in range(WORLD):
        file = directory / name.format(rank)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(change(trained(rank, **options).text()))
    return diagnose(load(directory))


def as_text(trace: str) -> str:
    return re.sub(r'"(ts|dur|stream|device|correlation)": ([\d.]+)', r'"\1": "\2"', trace)


def of_intel(trace: str) -> str:
    queued = re.sub(r'"stream": (\d+)', r'"sycl queue": \1', trace).replace("cuda_runtime", "xpu_runtime")
    return re.sub(r"ncclDevKernel_\w+\([^)]*\)", "oneccl_allreduce_small", queued)


@pytest.mark.parametrize("change", [as_text, of_intel])
def test_other_ways_to_write_numbers_and_streams_do_not_hide_the_slow_rank(
    change: Callable[[str], str], tmp_path: Path
) -> None:
    verdict = report_of(tmp_path, change=change).verdict

    assert (verdict.name, verdict.culprits) == ("compute-straggler", (SLOW,))


@pytest.mark.parametrize("name", ["rank{}.json", "1790-TP-{}.trace.json", "{}/trace.json", "prof_{}.json"])
def test_names_tell_the_ranks_and_kernels_the_size_of_the_job(name: str, tmp_path: Path) -> None:
    report = report_of(tmp_path, name, signed=False, **GROUP)

    assert (report.verdict.name, report.verdict.culprits) == ("compute-straggler", (SLOW,))


def test_of_several_traces_of_each_rank_the_newest_is_measured(tmp_path: Path) -> None:
    report_of(tmp_path, "first/rank{}.json", slow=2)

    report = report_of(tmp_path, "second/rank{}.json", origin_us=EPOCH_US + 60_000_000)

    assert (report.verdict.name, report.verdict.culprits) == ("compute-straggler", (SLOW,))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"signed": False}, "how many ranks"),
        ({"signed": False, "Group size": 64}, "3 of 64 ranks were traced"),
        ({"named": False}, "0 whole steps"),
    ],
)
def test_where_ranks_cannot_be_compared_nothing_standing_out_is_worth_little(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    verdict = report_of(tmp_path, **options).verdict

    assert (verdict.name, verdict.confidence) == ("healthy", Confidence.LOW)
    assert any(reason in text for text in verdict.evidence)
