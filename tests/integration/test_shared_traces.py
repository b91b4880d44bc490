"""Traces of real jobs: what is reported is exact, and HTA's own numbers come out of HTA's own definitions."""

import functools
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers.performance.profiles import profiles_of
from distdiag.importers import load
from tests import hta

TRACES = Path(__file__).parents[2].parent / "shared" / "data" / "profiler_traces"
FILES = {
    "trace_filter_pair": ("trace_filter_sampled_rank-0.json.gz", "trace_filter_sampled_rank-1.json.gz"),
    "ns_resolution": ("ns_resolution_trace_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",),
    "alexnet": ("critical_path_alexnet_benchmark_result_2869224_1695835535_trace.json.gz",),
    "tracelens_resnet": ("tracelens_resnet.json.gz",),
}
CPU_ONLY = "cpu_only_rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz"
NO_RANK = "distributed_info_unavailable_distributed_info_not_found.json.gz"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")


@functools.cache
def rows_in(name: str) -> list[dict[str, Any]]:
    return profiles_of(load(TRACES / name))


def row_of(name: str, *, rank: int = 0) -> dict[str, Any]:
    (row,) = rows_in(name)
    assert row["rank"] == rank
    return row


# ---- exact ------------------------------------------------------------------------------------------------------
PAIR = FILES["trace_filter_pair"]


@pytest.mark.parametrize(
    ("name", "rank", "idle", "compute", "other", "window", "overlap", "kept"),
    [
        (PAIR[0], 0, 321378, 106252, 172428, 600058, 11.81, 602),
        (PAIR[1], 1, 328671, 135548, 136455, 600674, 20.05, 577),
        (FILES["ns_resolution"][0], 0, 6452.701, 374738.006, 3443.756, 384634.463, None, 4876),
        (FILES["alexnet"][0], 0, 12854103, 10630, 55511, 12920244, None, 98),
        (FILES["tracelens_resnet"][0], 0, 174.916, 12788.957, 24999.399, 37963.272, 24.97, 1790),
    ],
)
def test_times_are_exact_to_the_nanosecond(
    name: str, rank: int, idle: float, compute: float, other: float, window: float, overlap: float | None, kept: int
) -> None:
    row = row_of(name, rank=rank)

    assert (row["idle_us"], row["compute_us"], row["non_compute_us"], row["window_us"]) == (
        idle,
        compute,
        other,
        window,
    )
    assert (row["overlap_pct"], row["activities"]) == (overlap, kept)
    assert math.isclose(row["idle_pct"] + row["compute_pct"] + row["non_compute_pct"], 100, abs_tol=0.02)


@pytest.mark.parametrize(
    ("name", "rank", "communication", "exposed"),
    [(PAIR[0], 0, 195327, 172259), (PAIR[1], 1, 168027, 134336), ("tracelens_resnet.json.gz", 0, 31774.284, 23840.516)],
)
def test_communication_that_nothing_hides_is_exact(name: str, rank: int, communication: float, exposed: float) -> None:
    row = row_of(name, rank=rank)

    assert (row["communication_us"], row["exposed_us"]) == (communication, exposed)


@pytest.mark.parametrize(
    ("name", "rank", "stream", "waits"),
    [
        (PAIR[0], 0, 7, (213825, 1985, 261740)),
        (PAIR[0], 0, None, (182341, 1551, 137486)),
        (PAIR[1], 1, 7, (156827, 1816, 281064)),
        (PAIR[1], 1, 84, (251860, 0, 23247)),
        (PAIR[1], 1, None, (180096, 739, 147836)),
        (FILES["ns_resolution"][0], 0, 7, (1347.125, 5105.576, 0)),
        (FILES["ns_resolution"][0], 0, None, (1347.125, 5105.576, 0)),
        (FILES["alexnet"][0], 0, 7, (12855007, 104, 0)),
        (FILES["alexnet"][0], 0, 20, (12011718, 3, 0)),
        (FILES["alexnet"][0], 0, None, (12853995, 108, 0)),
        ("tracelens_resnet.json.gz", 0, 0, (0, 1556.651, 22296.129)),
        ("tracelens_resnet.json.gz", 0, 4, (0, 71.459, 5783.771)),
        ("tracelens_resnet.json.gz", 0, None, (0, 174.916, 0)),
    ],
)
def test_why_a_stream_and_the_whole_device_were_idle(
    name: str, rank: int, stream: int | None, waits: tuple[float, float, float]
) -> None:
    row = row_of(name, rank=rank)
    told = row if stream is None else next(each for each in row["streams"] if each["stream"] == stream)

    assert tuple(told["idle_waits"][f"{cause}_wait_us"] for cause in ("host", "kernel", "other")) == waits


def test_kernels_without_launch_and_those_of_the_last_step_are_counted() -> None:
    row = row_of("tracelens_resnet.json.gz")

    assert (row["without_launch"], row["in_last_step"], row["steps"]) == (968, 895, [15, 16])


@pytest.mark.parametrize(("name", "rank", "mean"), [(PAIR[0], 0, 16.21), (PAIR[1], 1, 16.0)])
def test_the_queue_is_weighted_by_time(name: str, rank: int, mean: float) -> None:
    stream = next(each for each in row_of(name, rank=rank)["streams"] if each["stream"] == 7)

    assert stream["queue"]["mean"] == mean


@pytest.mark.parametrize(("name", "rank"), [(CPU_ONLY, 34), (NO_RANK, 0)])
def test_a_trace_without_a_device_says_so_instead_of_failing(name: str, rank: int) -> None:
    row = row_of(name, rank=rank)

    assert (row["idle_pct"], row["overlap_pct"], row["device"]) == (None, None, None)
    assert row["unknown"]["idle_pct"] == "no device activity"


def test_traces_of_different_jobs_in_one_directory_are_not_compared() -> None:
    run = load(TRACES)
    rows = profiles_of(run)

    assert len(rows) == 7
    assert [row["waiting"] for row in rows if row["file"] in PAIR] == [None, None], "rank 0 has traces of other jobs"
    assert any("4 traces are of rank 0" in note for note in run.quality.notes)


def test_a_directory_of_two_ranks_shows_both_and_who_came_last(tmp_path: Path) -> None:
    for name in PAIR:
        shutil.copy(TRACES / name, tmp_path)

    done = subprocess.run(
        [sys.executable, "-m", "distdiag", "analyze", str(tmp_path)], capture_output=True, text=True, timeout=150
    )

    assert done.returncode == 0, done.stderr
    assert "rank 1 came last in 60 % of 5 collectives" in done.stdout
    assert re.search(r"^\s*0 .* 53\.6 % +17\.7 % +28\.7 % +11\.8 %", done.stdout, re.MULTILINE)
    assert re.search(r"^\s*1 .* 54\.7 % +22\.6 % +22\.7 % +20\.1 %", done.stdout, re.MULTILINE)


def test_one_packed_trace_is_analysed_by_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "distdiag", "analyze", str(TRACES / "tracelens_resnet.json.gz"), "--format", "json"],
        capture_output=True,
        text=True,
        timeout=150,
    )

    row = json.loads(done.stdout)["performance"]["profiler"][0]
    assert {name: row[name] for name in ("rank", "idle_pct", "compute_pct", "non_compute_pct", "overlap_pct")} == {
        "rank": 0,
        "idle_pct": 0.46,
        "compute_pct": 33.69,
        "non_compute_pct": 65.85,
        "overlap_pct": 24.97,
    }


# ---- HTA --------------------------------------------------------------------------------------------------------
def reference(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((TRACES / "hta_reference.json").read_text())[name]
    return told


def rows_of(name: str) -> dict[int, list[hta.Row]]:
    return hta.load({rank: TRACES / file for rank, file in enumerate(FILES[name])})


@pytest.mark.parametrize("name", FILES)
def test_hta_has_its_own_numbers_by_its_own_definitions(name: str) -> None:
    told, rows = reference(name), rows_of(name)

    assert {str(rank): len(each) for rank, each in rows.items()} == told["rows"]
    assert [{"rank": rank, **hta.temporal(each)} for rank, each in rows.items()] == told["temporal"]
    assert repr([hta.overlap(each) for each in rows.values()]) == repr(
        [each["comp_comm_overlap_pctg"] for each in told["overlap"]]
    )
    waits = {
        (each["stream"], each["idle_category"]): (each["idle_time"], each["idle_time_ratio"]) for each in told["idle"]
    }
    assert {key: tuple(map(repr, map(float, each))) for key, each in hta.idle(rows[0]).items()} == {
        key: tuple(map(repr, map(float, each))) for key, each in waits.items()
    }


def test_hta_names_the_straggler_of_the_pair() -> None:
    ranks = rows_of("trace_filter_pair")

    assert hta.stragglers(ranks) == reference("trace_filter_pair")["stragglers"] == [1]
    assert hta.stragglers(ranks, most=2) == [0, 1]


@pytest.mark.parametrize("name", ["ns_resolution", "tracelens_resnet"])
def test_hta_finds_no_collective_where_it_does_not_know_the_names(name: str) -> None:
    assert reference(name)["stragglers"].startswith("ERR ValueError")
    with pytest.raises(ValueError, match="no collective"):
        hta.stragglers(rows_of(name))


@pytest.mark.parametrize(
    ("name", "rank", "stream", "points", "mean", "longest"),
    [
        ("trace_filter_pair", 0, 7, 1052, 23.6198, 76),
        ("trace_filter_pair", 1, 7, 1002, 24.6657, 75),
        ("tracelens_resnet", 0, 0, 5346, 1064.95, 1840),
    ],
)
def test_hta_weights_queues_by_points(
    name: str, rank: int, stream: int, points: int, mean: float, longest: int
) -> None:
    found = hta.queue(rows_of(name)[rank], stream)

    assert (found[0], found[2]) == (points, longest)
    assert found[1] == pytest.approx(mean, abs=0.02)
