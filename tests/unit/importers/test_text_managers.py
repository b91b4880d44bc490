"""Verdicts where schedulers, orchestrators, and launchers of frameworks say how processes ended, and why."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Report
from distdiag.importers import load
from tests import training_output as out

STEP = ("/project/pretrain.py", 57, "one_step")


def report_of(directory: Path, *parts: str) -> Report:
    (directory / "train.log").write_text(out.text(*parts))
    return diagnose(load(directory))


# ---- somebody ended the job -----------------------------------------------------------------------------------------
STOPPED = {
    "preempted": (
        (
            "slurmstepd: error: *** STEP 71.0 ON g03 CANCELLED AT 2026-03-04T05:06:07 DUE TO PREEMPTION ***",
            "W0304 05:06:07.500000 811 torch/distributed/elastic/agent/server/api.py:739] Received Signals.SIGTERM "
            "death signal, shutting down workers",
            "srun: error: g03: task 0: Exited with exit code 1",
        ),
        "preemption",
    ),
    "queued again": (
        (
            "slurmstepd: error: *** JOB 71 ON g03 CANCELLED AT 2026-03-04T05:06:07 DUE TO JOB REQUEUE ***",
            "srun: error: g03: tasks 1,3-4: Exited with exit code 1",
            "srun: error: g04: task 6: Segmentation fault",
        ),
        "job requeue",
    ),
    "a host failed": (
        (
            "srun: error: Node failure on g17",
            "srun: error: g17: tasks 8-15: Killed",
            "srun: error: g16: tasks 0-7: Killed",
        ),
        "node g17 failed",
    ),
    "by hand": (
        (
            "W0304 05:06:07.500000 811 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGINT "
            "death signal, shutting down workers",
            "E0304 05:06:08.500000 811 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) "
            "local_rank: 2 (pid: 900) of binary: /opt/venv/bin/python",
        ),
        "SIGINT",
    ),
    "the raylet": (
        (
            "(raylet) *** SIGBUS received at time=1777777777 on cpu 12 ***",
            "(raylet) Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the "
            "user or system OOM killer, (2) Invalid memory access from Raylet",
        ),
        "raylet",
    ),
}


@pytest.mark.parametrize(("lines", "mentions"), STOPPED.values(), ids=STOPPED)
def test_how_processes_end_once_somebody_ends_the_job_accuses_none_of_them(
    lines: tuple[str, ...], mentions: str, tmp_path: Path
) -> None:
    verdict = report_of(tmp_path, "0: step 881 loss 2.25", *lines).verdict

    assert (verdict.name, verdict.culprits) == ("insufficient-evidence", ())
    assert mentions in verdict.summary


def test_a_task_that_ended_before_the_job_was_cancelled_is_the_first(tmp_path: Path) -> None:
    verdict = report_of(
        tmp_path,
        "srun: error: g05: task 9: Segmentation fault",
        "slurmstepd: error: *** STEP 71.0 ON g04 CANCELLED AT 2026-03-04T05:06:07 ***",
        "srun: error: g04: tasks 0-7: Terminated",
    ).verdict

    assert (verdict.name, verdict.culprits) == ("rank-died", (9,))


@pytest.mark.parametrize(
    ("line", "mentions"),
    [
        ("Warning  Evicted  kubelet  The node was low on resource: memory. Threshold quantity: 1Gi", "low on memory"),
        ("    Last State:  Terminated  Reason:  OOMKilled  Exit Code: 137", "memory limit"),
        ("EI0002: [PID: 71] 2026-03-04-05:06:07.100.200 The wait execution of the Notify register times out.", "HCCL"),
        ("2026:03:04-05:06:07:(71) |CCL_ERROR| w.cpp:3 run: oneCCL: ofi.cpp:9 up: EXCEPTION: no fabric", "no fabric"),
        ("[ 88.120000] amdgpu 0000:5d:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=7", "0000:5d:00.0"),
        (
            "(EngineCore_DP0 pid=71) ERROR 03-04 05:06:07 [core.py:1] TimeoutError: RPC call to execute timed out.",
            "RPC",
        ),
    ],
)
def test_what_names_no_rank_is_told_all_the_same(line: str, mentions: str, tmp_path: Path) -> None:
    verdict = report_of(tmp_path, "step 881 loss 2.25", line).verdict

    assert (verdict.name, verdict.culprits) == ("insufficient-evidence", ())
    assert mentions in verdict.summary


# ---- who ended ------------------------------------------------------------------------------------------------------
ENDED = {
    "Lightning's child": (
        ("[rank: 5] Child process with PID 7100 terminated with code -11. Forcefully terminating all other processes",),
        ("rank-died", (5,), "aborted"),
    ),
    "MPI_Abort": (
        (
            "MPI_ABORT was invoked on rank 6 in communicator MPI_COMM_WORLD",
            "  Proc: [[811,1],6]",
            "  Errorcode: 3",
        ),
        ("rank-died", (6,), "exited"),
    ),
    "MPICH": (
        (
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
            "=   RANK 3 PID 7103 RUNNING AT g03",
            "=   KILLED BY SIGNAL: 9 (Killed)",
        ),
        ("rank-died", (3,), "killed"),
    ),
    "the kernel, for a limit of memory": (
        ("[9.1] Memory cgroup out of memory: Killed process 7103 (pt_main_thread) total-vm:9kB, anon-rss:8kB",),
        ("rank-died", (), "killed"),
    ),
    "Composer's copy of what a rank said": (
        (
            "ERROR:composer.cli.launcher:Rank 9 crashed with exit code 1.",
            "----------Begin global rank 9 STDERR----------",
            *out.traceback("RuntimeError: CUDA error: uncorrectable NVLink error detected", STEP),
            "----------End global rank 9 STDERR----------",
        ),
        ("rank-died", (9,), "exception"),
    ),
    "vLLM's worker": (
        ("ERROR 03-04 05:06:07 [multiproc_executor.py:140] Worker proc VllmWorker-2 died unexpectedly, shutting down",),
        ("rank-died", (2,), "exception"),
    ),
    "vLLM's worker without memory": (
        (
            "(Worker_TP3 pid=7103) ERROR 03-04 05:06:07 [m.py:5] Traceback (most recent call last):",
            '(Worker_TP3 pid=7103) ERROR 03-04 05:06:07 [m.py:5]   File "/srv/runner.py", line 9, in run',
            "(Worker_TP3 pid=7103) ERROR 03-04 05:06:07 [m.py:5] " + out.out_of_memory(3),
        ),
        ("out-of-memory", (3,), "out-of-memory"),
    ),
    "oneCCL's worker thread": (
        (
            "terminate called after throwing an instance of 'ccl::v1::exception'",
            "  what():  oneCCL: ze_call.cpp:9 call: EXCEPTION: code: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        ),
        ("out-of-memory", (), "out-of-memory"),
    ),
    "an actor of Ray": (
        (
            "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: "
            "7101 Worker exit type: SYSTEM_ERROR",
            "Traceback (most recent call last):",
            '  File "/project/trainer.py", line 9, in fit',
            "    self.actors.update(batch)",
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
            "\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict",
            "\tpid: 7101",
            "\tname: Q7xWorkerDict_0:1",
        ),
        ("rank-died", (1,), "exception"),
    ),
}


@pytest.mark.parametrize(("lines", "expected"), ENDED.values(), ids=ENDED)
def test_who_a_launcher_says_ended_is_named(
    lines: tuple[str, ...], expected: tuple[str, tuple[int, ...], str], tmp_path: Path
) -> None:
    verdict = report_of(tmp_path, *lines).verdict

    assert (verdict.name, verdict.culprits, verdict.cause) == expected


# ---- errors of NCCL that end a collective ---------------------------------------------------------------------------
def broken(rank: int, error: str, last: str, library: str = "ncclRemoteError: A call failed") -> list[str]:
    work = "WorkNCCL(SeqNum=57, OpType=ALLREDUCE, NumelIn=40, NumelOut=40, Timeout(ms)=600000)"
    said = f"[Rank {rank}] Collective {work} raised the following async exception: NCCL error: {error}, NCCL version 2"
    return [out.glog(rank, said, file="ProcessGroupNCCL.cpp:552"), library, "Last error:", last, "frame #0: c10::Error"]


def lost(rank: int) -> list[str]:
    closed = "socketProgress: Connection closed by remote peer g07<4100>"
    return broken(rank, "remote process exited or there was a network error", closed)


def test_ranks_whose_peer_went_away_wait_for_the_one_that_said_nothing(tmp_path: Path) -> None:
    verdict = report_of(tmp_path, *(line for rank in (0, 1, 3) for line in lost(rank))).verdict

    assert (verdict.name, verdict.culprits, verdict.cause) == ("rank-missing", (2,), "exited")
    assert (verdict.op, verdict.seq, verdict.victims) == ("all_reduce", 57, (0, 1, 3))


def test_a_rank_whose_own_device_failed_is_told_from_those_that_lost_it(tmp_path: Path) -> None:
    own = broken(
        1,
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "Cuda failure 'an illegal memory access was encountered'",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
    )

    verdict = report_of(tmp_path, *own, *(line for rank in (0, 2) for line in lost(rank))).verdict

    assert (verdict.name, verdict.culprits, verdict.victims) == ("rank-died", (1,), (0, 2))
    assert "illegal memory access" in verdict.summary


def test_where_all_ranks_lost_a_peer_none_is_accused(tmp_path: Path) -> None:
    verdict = report_of(tmp_path, *(line for rank in range(4) for line in lost(rank))).verdict

    assert verdict.culprits == ()
