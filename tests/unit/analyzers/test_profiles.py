"""Traces with known answers: shares, overlap, gaps, queues, and who the others waited for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers import diagnose
from distdiag.analyzers.performance.profiles import profiles_of
from distdiag.findings import Confidence, Verdict
from distdiag.importers import load, profiler
from distdiag.importers._traces.device import timelines
from distdiag.importers._traces.trace import read_trace
from distdiag.run import Quality, measured
from tests.traces import Trace


def rows_of(directory: Path, *traces: Trace) -> list[dict[str, Any]]:
    files = [trace.write(directory) for trace in traces]
    return profiles_of(measured(profiler.read(files).tables, Quality(files=len(files), bytes=0)))


def row_of(directory: Path, trace: Trace) -> dict[str, Any]:
    (row,) = rows_of(directory, trace)
    return row


# ---- shares -----------------------------------------------------------------------------------------------------
def test_shares_are_of_the_time_from_the_first_start_to_the_last_end(tmp_path: Path) -> None:
    trace = Trace().kernel("gemm", at=10, lasts=40).all_reduce(at=40, lasts=30).copy(at=90, lasts=20)

    row = row_of(tmp_path, trace)

    assert row["window_us"] == 100
    assert (row["compute_pct"], row["non_compute_pct"], row["idle_pct"]) == (40, 40, 20)
    assert (row["communication_us"], row["exposed_us"], row["memory_us"]) == (30, 20, 20)
    assert row["overlap_pct"] == 33.33


def test_kernels_that_run_side_by_side_count_once(tmp_path: Path) -> None:
    trace = Trace().kernel("a", at=10, lasts=50, stream=7).kernel("b", at=20, lasts=10, stream=8)

    row = row_of(tmp_path, trace)

    assert (row["compute_us"], row["idle_us"]) == (50, 0)


def test_each_device_has_a_row_of_its_own(tmp_path: Path) -> None:
    trace = Trace().kernel("a", at=10, lasts=5, device=0).kernel("a", at=10, lasts=5, device=1)
    trace.kernel("a", at=20, lasts=5, device=1)

    rows = rows_of(tmp_path, trace)

    assert [(row["device"], row["window_us"], row["idle_pct"]) for row in rows] == [(0, 5, 0), (1, 15, 33.33)]


def test_synchronisation_and_annotations_are_no_work(tmp_path: Path) -> None:
    trace = Trace().kernel("a", at=10, lasts=5).kernel("a", at=95, lasts=5)
    for cat in ("cuda_sync", "gpu_user_annotation", "cpu_op"):
        trace.kernel("x", at=0, lasts=200, cat=cat)

    row = row_of(tmp_path, trace)

    assert (row["window_us"], row["idle_us"], row["activities"]) == (90, 80, 2)


@pytest.mark.parametrize(
    ("name", "args", "kind"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", {}, "communication"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", {}, "communication"),
        ("void ncclKernel_AllReduce()", {}, "communication"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", {}, "communication"),
        ("rcclGenericKernel", {}, "communication"),
        ("my_symmetric_all_reduce", {"Collective name": "allreduce"}, "communication"),
        ("void SyncBatchNormBackward<float>()", {}, "compute"),
        ("hipblas_gemm", {}, "compute"),
        ("fused_dma_free_kernel", {}, "compute"),
        ("not_ncclKernels", {}, "compute"),
    ],
)
def test_what_communicates_is_told_by_its_name_or_by_what_it_says(
    name: str, args: Mapping[str, Any], kind: str, tmp_path: Path
) -> None:
    row = row_of(tmp_path, Trace().kernel(name, at=10, lasts=5, **args))

    assert [kernel["kind"] for kernel in row["kernels"]] == [kind]


def test_groups_that_kernels_name_are_told_apart(tmp_path: Path) -> None:
    trace = Trace().kernel("gemm", at=0, lasts=10)
    tensor_parallel: dict[str, Any] = {"Process Group Name": "1", "Process Group Description": "tp"}
    trace.all_reduce(at=5, lasts=10, **tensor_parallel)
    trace.all_reduce(at=20, lasts=10, stream=21)

    row = row_of(tmp_path, trace)

    assert {group["group"]: (group["busy_us"], group["exposed_us"]) for group in row["groups"]} == {
        "tp": (10, 5),
        "default_pg": (10, 10),
    }


def test_each_step_tells_what_it_communicates_and_what_of_that_is_hidden(tmp_path: Path) -> None:
    trace = Trace().step(1, at=0).step(2, at=100).step(3, at=200)
    trace.kernel("gemm", at=10, lasts=20, launched=5).all_reduce(at=20, lasts=20, launched=6)
    trace.kernel("gemm", at=110, lasts=10, launched=105).all_reduce(at=130, lasts=30, launched=106)

    per_step = row_of(tmp_path, trace)["per_step"]

    names = ("step", "compute_us", "communication_us", "exposed_us", "overlap_pct")
    assert [tuple(each[name] for name in names) for each in per_step] == [(1, 20, 20, 10, 50), (2, 10, 30, 30, 0)]
    assert [each["groups"][0]["exposed_us"] for each in per_step] == [10, 30]


# ---- steps ------------------------------------------------------------------------------------------------------
def test_what_was_launched_in_the_last_step_does_not_count_but_keeps_the_device_busy(tmp_path: Path) -> None:
    trace = Trace().step(1, at=0).step(2, at=100)
    trace.kernel("a", at=50, lasts=10, launched=10).kernel("a", at=150, lasts=50, launched=90)
    trace.kernel("b", at=160, lasts=100, launched=110, stream=8).kernel("b", at=400, lasts=5, launched=300)

    row = row_of(tmp_path, trace)

    assert (row["steps"], row["activities"], row["in_last_step"]) == ([1], 2, 2)
    assert (row["window_us"], row["compute_us"], row["idle_us"]) == (150, 60, 90)


def test_work_that_was_launched_before_tracing_keeps_the_device_busy(tmp_path: Path) -> None:
    trace = Trace().step(1, at=0).step(2, at=100)
    trace.kernel("a", at=20, lasts=10).kernel("b", at=35, lasts=10, launched=None, stream=8).kernel(
        "a", at=60, lasts=10
    )

    row = row_of(tmp_path, trace)

    assert (row["activities"], row["without_launch"], row["idle_us"]) == (2, 1, 20)


def test_without_any_launch_the_start_decides_and_that_is_said(tmp_path: Path) -> None:
    trace = Trace().step(1, at=0).step(2, at=100)
    trace.kernel("a", at=20, lasts=10, launched=None).kernel("a", at=120, lasts=10, launched=None)

    row = row_of(tmp_path, trace)

    assert row["window_us"] == 10
    assert row["notes"] == ["no launches are in the trace: what started before the last step counts"]
    assert row["unknown"]["launch_delay_us"] == "no launch is in the trace"


def test_a_single_step_counts_whole_and_that_is_said(tmp_path: Path) -> None:
    row = row_of(tmp_path, Trace().step(1, at=0).kernel("a", at=20, lasts=10))

    assert row["notes"] == ["fewer than two steps are marked: the whole trace counts"]


def test_work_only_in_the_last_step_gives_a_reason_instead_of_shares(tmp_path: Path) -> None:
    row = row_of(tmp_path, Trace().step(1, at=0).step(2, at=100).kernel("a", at=120, lasts=10))

    assert row["idle_pct"] is None
    assert "before the last step" in row["unknown"]["idle_pct"]


def test_work_that_takes_no_time_gives_a_reason(tmp_path: Path) -> None:
    row = row_of(tmp_path, Trace().kernel("a", at=5, lasts=0))

    assert (row["idle_pct"], row["unknown"]["idle_pct"]) == (None, "the activities take no time")


# ---- idle, queue, launches --------------------------------------------------------------------------------------
def test_gaps_are_divided_by_what_the_device_waited_for(tmp_path: Path) -> None:
    trace = Trace().kernel("a", at=10, lasts=10)
    trace.kernel("late", at=50, lasts=10, launched=45)
    trace.kernel("near", at=70, lasts=10, launched=46)
    trace.kernel("far", at=200, lasts=10, launched=47)

    row = row_of(tmp_path, trace)

    assert row["idle_waits"] == {
        "host_wait_us": 30,
        "kernel_wait_us": 10,
        "other_wait_us": 120,
        "host_wait_pct": 18.75,
        "kernel_wait_pct": 6.25,
        "other_wait_pct": 75.0,
    }
    assert row["idle_us"] == 160


def test_what_is_a_short_gap_is_an_option(tmp_path: Path) -> None:
    trace = Trace().kernel("a", at=10, lasts=10).kernel("b", at=70, lasts=10, launched=5).write(tmp_path)

    (usual,), (wider,) = (list(timelines(read_trace(trace), *options)) for options in ((), (60_000,)))

    assert (usual.idle.kernel_wait_ns, usual.idle.other_wait_ns) == (0, 50_000)
    assert (wider.idle.kernel_wait_ns, wider.idle.other_wait_ns) == (50_000, 0)


def test_kernels_that_overlap_on_one_stream_leave_no_negative_gap(tmp_path: Path) -> None:
    trace = Trace().kernel("long", at=0, lasts=100).kernel("short", at=10, lasts=5).kernel("next", at=20, lasts=100)

    row = row_of(tmp_path, trace)

    assert (row["window_us"], row["idle_us"]) == (120, 0)
    assert row["streams"][0]["idle_waits"] is None
    assert row["streams"][0]["unknown"] == {"idle_waits": "nothing was idle between two activities"}


def test_the_queue_of_a_stream_is_what_was_launched_and_did_not_start(tmp_path: Path) -> None:
    trace = Trace().kernel("a", at=10, lasts=10, launched=0)
    trace.kernel("a", at=20, lasts=10, launched=5).kernel("a", at=40, lasts=10, launched=30)

    queue = row_of(tmp_path, trace)["streams"][0]["queue"]

    # one for 5 us, two for 5, one for 10, none for 10, one for 10
    assert queue == {"mean": round((5 + 10 + 10 + 10) / 40, 2), "longest": 2, "full_pct": 0}


def test_two_launches_of_one_correlation_count_a_kernel_once(tmp_path: Path) -> None:
    trace = Trace().kernel("a", at=10, lasts=10).kernel("a", at=30, lasts=10)
    trace.event("cuda_driver", "cuLaunchKernel", 29, 1, correlation=2)

    row = row_of(tmp_path, trace)

    assert (row["activities"], row["idle_us"]) == (2, 10)


def test_delays_from_launch_to_start_are_told_in_quantiles(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(101):
        trace.kernel("a", at=1000 + 10 * number, lasts=1, launched=1000 + 9 * number)

    assert row_of(tmp_path, trace)["launch_delay_us"] == {"p10": 10, "p50": 50, "p90": 90}


def test_kernels_are_ranked_by_the_time_they_take(tmp_path: Path) -> None:
    trace = Trace().kernel("often", at=0, lasts=4).kernel("often", at=10, lasts=6).kernel("once", at=20, lasts=9)

    assert row_of(tmp_path, trace)["kernels"] == [
        {"name": "often", "kind": "compute", "count": 2, "total_us": 10, "longest_us": 6},
        {"name": "once", "kind": "compute", "count": 1, "total_us": 9, "longest_us": 9},
    ]


# ---- waiting ----------------------------------------------------------------------------------------------------
STEP_US, STEPS = 1000.0, 6
SECOND_US = 1_000_000


def job(late: Mapping[int, float], *, skew_us: int = 0, **options: Any) -> list[Trace]:
    """Ranks that compute 200 us a step, some of them longer, and then reduce for 100 us together."""
    traces = []
    last = 200 + max(late.values())
    for rank in range(len(late)):
        trace = Trace(rank=rank, world_size=len(late))
        trace.origin_us += rank * skew_us
        for step in range(STEPS):
            begin = step * STEP_US
            own = 200 + late[rank]
            trace.step(step, at=begin, lasts=STEP_US - 1)
            trace.kernel("gemm", at=begin + 10, lasts=own)
            trace.all_reduce(at=begin + 10 + own, lasts=last - own + 100, **options)
        traces.append(trace)
    return traces


@pytest.mark.parametrize("skew_us", [0, 500_000])
def test_the_rank_whose_kernels_are_shortest_made_the_others_wait(skew_us: int, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, *job({0: 0, 1: 300, 2: 0}, skew_us=skew_us))

    assert [row["waiting"]["came_last_pct"] for row in rows] == [0, 100, 0]
    assert [row["waiting"]["waited_us"] for row in rows] == [1500, 0, 1500]
    assert [row["waiting"]["waits_caused_us"] for row in rows] == [0, 1500, 0]
    assert [row["waiting"]["transfer_us"] for row in rows] == [500, 500, 500]


def test_nobody_is_last_where_all_come_at_once(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, *job({0: 0, 1: 2, 2: 1}))

    assert [row["waiting"]["came_last_pct"] for row in rows] == [0, 0, 0]


def test_one_rank_alone_says_why_waiting_is_not_told(tmp_path: Path) -> None:
    row = row_of(tmp_path, job({0: 0, 1: 300})[0])

    assert row["waiting"] is None
    assert "traces of several ranks" in row["unknown"]["waiting"]


def test_collectives_that_tell_their_numbers_need_no_steps(tmp_path: Path) -> None:
    traces = []
    for rank, late in enumerate((0, 30)):
        trace = Trace(rank=rank, world_size=2)
        for number in range(3):
            trace.all_reduce(at=100 * number + late, lasts=50 - late, Seq=number + 7)
        traces.append(trace)

    rows = rows_of(tmp_path, *traces)

    assert [row["waiting"]["waited_us"] for row in rows] == [90, 0]


def test_traces_of_other_times_are_not_compared(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, *job({0: 0, 1: 300}, skew_us=3600 * SECOND_US))

    assert [row["waiting"] for row in rows] == [None, None]


def test_a_step_in_which_the_ranks_have_different_numbers_of_collectives_is_left_out(tmp_path: Path) -> None:
    traces = job({0: 0, 1: 300})
    traces[0].all_reduce(at=900, lasts=5)

    rows = rows_of(tmp_path, *traces)

    assert [row["waiting"]["collectives"] for row in rows] == [STEPS - 2, STEPS - 2]


def test_sends_and_receives_are_not_compared(tmp_path: Path) -> None:
    sends: dict[str, Any] = {"Collective name": "send"}

    rows = rows_of(tmp_path, *job({0: 0, 1: 300}, **sends))

    assert [row["waiting"] for row in rows] == [None, None]


# ---- findings ---------------------------------------------------------------------------------------------------
def verdict_of(directory: Path, *traces: Trace) -> Verdict:
    for trace in traces:
        trace.write(directory)
    return diagnose(load(directory)).verdict


def test_a_rank_that_computes_longer_in_every_step_is_named(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *job({0: 0, 1: 0, 2: 150, 3: 0}))

    assert (verdict.name, verdict.culprits, verdict.victims) == ("compute-straggler", (2,), (0, 1, 3))
    assert verdict.summary.startswith("rank 2 computes 1.75x as long as its peers: 0.3 ms of kernels a step")
    assert verdict.confidence is Confidence.MEDIUM, "the rank may have more to do"


def test_traces_that_may_be_of_other_steps_are_said_not_to_be_compared(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *job({0: 0, 1: 0, 2: 150, 3: 0}, skew_us=3600 * SECOND_US))

    assert (verdict.name, verdict.confidence) == ("healthy", Confidence.LOW)
    assert any("the traces begin 10800 s apart: ranks are not compared" in said for said in verdict.evidence)


def test_ranks_that_compute_alike_are_healthy(tmp_path: Path) -> None:
    assert verdict_of(tmp_path, *job({0: 0, 1: 5, 2: 3, 3: 0})).name == "healthy"


def test_a_rank_that_is_not_traced_may_be_the_slow_one(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *job({0: 0, 1: 0, 2: 150, 3: 0})[1:])

    assert verdict.name == "healthy"


def test_a_rank_that_is_late_once_is_not_named(tmp_path: Path) -> None:
    traces = job({0: 0, 1: 0})
    slow = job({0: 0, 1: 400})
    once = len(traces[0].events) // STEPS
    for trace, late in zip(traces, slow, strict=True):
        trace.events[once : 2 * once] = late.events[once : 2 * once]

    assert verdict_of(tmp_path, *traces).name == "healthy"


def bound(*, late: float = 0.0) -> list[Trace]:
    """Two ranks that compute 200 us a step and transfer for 700, the second one perhaps late."""
    traces = job({0: 0, 1: late})
    for trace in traces:
        for step in range(STEPS):
            trace.all_reduce(at=step * STEP_US + 330 + late, lasts=600)
    return traces


def test_steps_of_transfers_that_nothing_hides_are_bound_by_communication(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *bound())

    assert (verdict.name, verdict.culprits) == ("communication-bound", ())
    assert verdict.summary.startswith("71% of a step is communication that no computing hides, computing takes 20%")


def test_waiting_for_a_late_rank_is_no_bound_of_the_network(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *job({0: 0, 1: 700}))

    assert (verdict.name, verdict.culprits) == ("compute-straggler", (1,))


def test_a_healthy_verdict_on_traces_is_not_certain_of_the_rest_of_the_job(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, *job({0: 0, 1: 0}))

    assert verdict.confidence is Confidence.MEDIUM
    assert "what other steps and ranks did is not told" in verdict.evidence[0]


def test_a_trace_without_device_work_is_no_proof_of_health(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, Trace().event("cpu_op", "aten::mm", 5, 1))

    assert (verdict.summary, verdict.confidence) == (
        "no device work to judge in profiler traces of rank 0",
        Confidence.LOW,
    )
