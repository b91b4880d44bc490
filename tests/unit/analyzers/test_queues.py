"""Jobs of several parallel shapes with a fault each, on devices that work behind their hosts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.importers import load
from tests.generated import Format, write_dumps, write_logs
from tests.generator import Fault, Job, Shape, Simulated, simulate
from tests.logs import Logs

Write = Callable[[Simulated, Path], Path]

SHAPES = {
    "data": Shape(data=4),
    "tensor-data": Shape(tensor=4, data=2),
    "pipeline-data-expert": Shape(pipeline=2, data=4, expert=4),
    "all": Shape(tensor=4, pipeline=2, data=2, expert=8),
}
WRITERS: dict[str, Write] = {
    "logs": write_logs,
    "dumps": write_dumps,
    "active-dumps": lambda run, directory: write_dumps(run, directory, Format(only_active=True)),
    "wrapped-rings": lambda run, directory: write_dumps(run, directory, Format(ring=30)),
}
NAMES = {
    "host": {"rank-missing"},
    "device": {"device-stuck"},
    "transport": {"transport-stuck"},
    "shape": {"shape-mismatch", "sequence-divergence"},
    "dtype": {"dtype-mismatch", "sequence-divergence"},
    "op": {"op-mismatch", "sequence-divergence"},
}
"""In a small group, what comes behind an odd call may as well have been left out before it."""


def verdict_of(job: Job, write: Write, directory: Path) -> Verdict:
    return diagnose(load(write(simulate(job), directory))).verdict


def group_of(shape: Shape) -> str:
    return "tensor" if shape.tensor > 2 else "data"


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("kind", NAMES)
def test_the_rank_with_the_fault_is_named_and_no_other(kind: str, write: Write, tmp_path: Path) -> None:
    shape = SHAPES["all"]
    fault = Fault(kind=kind, rank=9, step=2, group="tensor")

    verdict = verdict_of(Job(shape=shape, steps=4, fault=fault), write, tmp_path)

    assert verdict.name in NAMES[kind]
    assert verdict.culprits == (() if kind == "transport" else (9,))
    assert verdict.group == "tensor"


@pytest.mark.parametrize("kind", ["host", "device", "transport"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_any_shape(shape: Shape, kind: str, tmp_path: Path) -> None:
    fault = Fault(kind=kind, rank=shape.world_size - 2, step=1, group=group_of(shape))

    verdict = verdict_of(Job(shape=shape, steps=3, fault=fault), write_dumps, tmp_path)

    assert verdict.name in NAMES[kind]
    assert verdict.culprits == (() if kind == "transport" else (shape.world_size - 2,))


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_job_that_ended_well_is_healthy_whatever_its_clocks_say(write: Write, tmp_path: Path) -> None:
    job = Job(shape=SHAPES["all"], steps=3, skew_ns=5_000_000_000, ranks_per_host=4)

    assert verdict_of(job, write, tmp_path).name == "healthy"


@pytest.mark.parametrize("kind", ["host", "device"])
def test_several_ranks_of_one_fault_are_all_named(kind: str, tmp_path: Path) -> None:
    fault = Fault(kind=kind, rank=2, also=(5,), step=2, group="tensor")

    verdict = verdict_of(Job(shape=SHAPES["all"], steps=4, fault=fault), write_dumps, tmp_path)

    assert verdict.name in NAMES[kind]
    assert verdict.culprits == (2, 5)


@pytest.mark.parametrize("run_ahead", [1, 3, 40])
def test_how_far_hosts_run_ahead_changes_no_verdict(run_ahead: int, tmp_path: Path) -> None:
    fault = Fault(kind="host", rank=6, step=2, group="tensor")

    job = Job(shape=SHAPES["all"], steps=4, fault=fault, run_ahead=run_ahead)

    verdict = verdict_of(job, write_dumps, tmp_path)
    assert (verdict.name, verdict.culprits) == ("rank-missing", (6,))


def test_clocks_of_hosts_that_differ_by_seconds_change_no_verdict(tmp_path: Path) -> None:
    fault = Fault(kind="device", rank=6, step=2, group="tensor")
    job = Job(shape=SHAPES["all"], steps=4, fault=fault, skew_ns=20_000_000_000, ranks_per_host=4)

    verdict = verdict_of(job, write_dumps, tmp_path)

    assert (verdict.name, verdict.culprits) == ("device-stuck", (6,))


def test_ends_that_recording_does_not_see_are_no_standstill(tmp_path: Path) -> None:
    logs = Logs(2)
    for rank in logs:
        for _ in range(50):
            rank.all_reduce(device="cuda", pending=True)
        rank.pulses("train.py:9 evaluate", seconds=30.0)
        rank.exit()

    assert diagnose(logs.load(tmp_path)).verdict.name == "healthy"


def test_what_a_process_left_in_flight_when_it_ended_is_no_standstill(tmp_path: Path) -> None:
    logs = Logs(2)
    for rank in logs:
        rank.done(rank.all_reduce(device="cuda", pending=True), clock="device")
        rank.all_reduce(device="cuda", pending=True)
        rank.sleep(30.0).exit()

    assert diagnose(logs.load(tmp_path)).verdict.name == "healthy"
