"""Failures whose text names no rank, or no cause: what is told is said, and nobody is accused of it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.analyzers.summary.triage import POSITION
from distdiag.errors import DistdiagError
from distdiag.findings import Report, Verdict
from distdiag.importers import load
from tests import training_output as out

MAIN = ("/srv/job/fit.py", 61, "main")
FAULTY = "CUDA error: unspecified launch failure"
RESET = "Connection reset by peer"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Output of a job, and what is to be said of it."""

    output: str
    verdict: str
    culprits: tuple[int, ...] = ()
    cause: str | None = None
    mentions: str = ""
    advises: str = ""


def report_of(tmp_path: Path, output: str, name: str = "job.log") -> Report:
    (tmp_path / name).write_text(output)
    return diagnose(load(tmp_path / name))


def verdict_of(tmp_path: Path, output: str, name: str = "job.log") -> Verdict:
    return report_of(tmp_path, output, name).verdict


def store_get(waiter: int, reason: str) -> str:
    return (
        f"torch.distributed.DistBackendError: [{waiter}] is setting up NCCL communicator and retrieving ncclUniqueId "
        f"from [0] via c10d key-value store by key '0', but store->get('0') got error: {reason}"
    )


def launched(code: int, local_rank: int, pid: int = 7012) -> str:
    return (
        "E1103 09:14:02.551000 6990 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: "
        f"{code}) local_rank: {local_rank} (pid: {pid}) of binary: /opt/venv/bin/python"
    )


def deepspeed(code: int, local_rank: int) -> str:
    command = f"['/opt/venv/bin/python', '-u', 'fit.py', '--local_rank={local_rank}']"
    return (
        f"[2025-11-03 09:14:03,120] [ERROR] [launch.py:325:sigkill_handler] {command} exits with return code = {code}"
    )


def duplicate_gpu(first: int, second: int) -> list[str]:
    return [
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, "
        "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.3",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
        "Last error:",
        f"Duplicate GPU detected : rank {first} and rank {second} both on CUDA device 5e000",
    ]


def framed(error: str) -> list[str]:
    return [
        "╭─────────────── Traceback (most recent call last) ───────────────╮",
        "│ /srv/job/fit.py:61 in main                                      │",
        "│                                                                 │",
        "│    60 def main():                                               │",
        "│ ❱  61     train(read())                                         │",
        "╰─────────────────────────────────────────────────────────────────╯",
        error,
    ]


ENDED = "Process group watchdog thread terminated with exception: "

CASES = {
    "a device failed under a watchdog": Case(
        output=out.text(out.glog(5, f"[PG ID 0 PG GUID 0(default_pg) Rank 5] {ENDED}{FAULTY}")),
        verdict="rank-died",
        culprits=(5,),
        cause="exception",
        mentions="unspecified launch failure",
        advises="CUDA_LAUNCH_BLOCKING",
    ),
    "a device failed behind a progress bar, in the words of torch 2.2": Case(
        output=out.text(
            " 12%|█▏        | 120/1000 [02:11<16:03,  1.09s/it][rank3]:[E ProcessGroupNCCL.cpp:1182] [Rank 3] NCCL "
            "watchdog thread terminated with exception: CUDA error: device-side assert triggered",
            "CUDA kernel errors might be asynchronously reported at some other API call.",
        ),
        verdict="rank-died",
        culprits=(3,),
    ),
    "a device failed, and only what C++ says last is there": Case(
        output=out.text(
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank 6] {ENDED}{FAULTY}",
        ),
        verdict="rank-died",
        culprits=(6,),
        mentions="rank 6 raised CUDA error: unspecified launch failure",
    ),
    "a device failed under the watchdog of a group within the world": Case(
        output=out.text(
            "[2025-11-03 09:14:02,551 E 411 977] logging.cc:118: Unhandled exception: N3c1016DistBackendErrorE. "
            f"what(): [PG ID 4 PG GUID 11 Rank 1] {ENDED}{FAULTY}"
        ),
        verdict="rank-died",
        mentions="a rank that nothing names raised CUDA error",
    ),
    "a launcher names only the rank on its host": Case(
        output=out.text(launched(-9, 2)),
        verdict="rank-died",
        cause="killed",
        mentions="local rank 2, process 7012",
        advises="dmesg",
    ),
    "a launcher prints the command of its last process, whichever ended": Case(
        output=out.text(deepspeed(-9, 7)), verdict="rank-died", cause="killed", mentions="a rank that nothing names"
    ),
    "a spawned process was killed": Case(
        output=out.text(
            *out.traceback(
                "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL", MAIN
            )
        ),
        verdict="rank-died",
        culprits=(3,),
        cause="killed",
    ),
    "a peer went away": Case(
        output=out.text(*out.failed_call("broadcast", out.gloo_closed(), MAIN)),
        verdict="insufficient-evidence",
        mentions="fit.py:61",
    ),
    "the end of a log that was cut within a traceback": Case(
        output=out.text(*out.failed_call("all_reduce", out.gloo_closed(), MAIN)[2:]),
        verdict="insufficient-evidence",
        mentions="Connection closed by peer",
    ),
    "watchdogs could not run": Case(
        output=out.text(
            *(
                out.glog(
                    rank,
                    f"[PG ID 2 PG GUID 9(cp) Rank {rank}] ProcessGroupNCCL's watchdog got stuck for 540 seconds "
                    "without making progress in monitoring enqueued collectives.",
                )
                for rank in (2, 5)
            )
        ),
        verdict="insufficient-evidence",
        mentions="threads of ranks 2,5 could not run for 540 s",
    ),
    "a monitor saw no heartbeat": Case(
        output=out.text(
            "[rank4]:[E ProcessGroupNCCL.cpp:1316] [PG 2 Rank 0] Heartbeat monitor timed out! Process will be "
            "terminated after dumping debug info. workMetaList_.size()=7"
        ),
        verdict="insufficient-evidence",
        mentions="thread of rank 4 could not run",
    ),
    "another rank told of a time-out": Case(
        output=out.text(out.dump_signal(0, 412, 410, " rank 9")),
        verdict="insufficient-evidence",
        mentions="rank 9 told the others",
    ),
    "two processes use one device": Case(
        output=out.text(duplicate_gpu(3, 1)),
        verdict="rank-died",
        mentions="rank 3 and rank 1 both on CUDA device",
        advises="LOCAL_RANK",
    ),
    "NCCL alone says that two processes use one device": Case(
        output=out.text(
            "[1,3]<stdout>:node-9:811:902 [0] init.cc:712 NCCL WARN Duplicate GPU detected : rank 3 and rank 1 both on "
            "CUDA device 5e000"
        ),
        verdict="insufficient-evidence",
        mentions="Duplicate GPU",
        advises="LOCAL_RANK",
    ),
    "the store was not there": Case(
        output=out.text(
            "[E1103 09:14:02.551000000 socket.cpp:1019] [c10d] The client socket has timed out after 90000ms while "
            "trying to connect to (10.9.8.7, 29777)."
        ),
        verdict="insufficient-evidence",
        mentions="10.9.8.7:29777",
        advises="MASTER_ADDR",
    ),
    "the rendezvous was not there": Case(
        output=out.text(
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
            "failed. See inner exception for details."
        ),
        verdict="insufficient-evidence",
        mentions="C10d store",
    ),
    "the scheduler ended the job": Case(
        output=out.text(
            "slurmstepd: error: *** JOB 90210 ON node-9 CANCELLED AT 2025-11-03T09:14:02 DUE TO PREEMPTION ***"
        ),
        verdict="insufficient-evidence",
        mentions="job 90210 at 2025-11-03T09:14:02 because of preemption",
    ),
    "the terminal that started it was closed": Case(
        output=out.text(
            " 9%|▉  | 9/100 [0:09<1:31]WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, "
            "shutting down workers",
            "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 7012 closing signal SIGHUP",
        ),
        verdict="insufficient-evidence",
        mentions="told to stop with SIGHUP",
        advises="nohup",
    ),
    "Ray lost a worker": Case(
        output=out.text(
            "(raylet) A worker died or was killed while executing a task by an unexpected system error. RayTask ID: 0f "
            "Worker ID: 1e Node ID: 2d Worker IP address: 10.9.8.7 Worker port: 10011 Worker PID: 7012 Worker exit "
            "type: SYSTEM_ERROR",
            *out.traceback("ray.exceptions.RayActorError: The actor died unexpectedly.", MAIN),
        ),
        verdict="rank-died",
        mentions="worker process 7012 died without a word",
        advises="ray's session folder",
    ),
    "Ray lost a worker whose rank is told": Case(
        output=out.text(
            "(Worker pid=7012) " + out.glog(3, "ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1"),
            "(raylet) A worker died or was killed while executing a task by a system error. Worker PID: 7012",
        ),
        verdict="rank-died",
        culprits=(3,),
    ),
    "two processes ended on one line": Case(
        output=out.text(
            "terminate called after throwing an instance of 'terminate called after throwing an instance of "
            "'c10::DistBackendError'",
            "c10::DistBackendError'",
            f"  what():    what():  [PG ID 0 PG GUID 0(default_pg) Rank 6] {ENDED}{FAULTY}",
        ),
        verdict="rank-died",
        culprits=(6,),
    ),
    "a server's logger writes its prefix once": Case(
        output=out.text(
            "[2025-11-03 09:14:02 TP6] Scheduler hit an exception: Traceback (most recent call last):",
            *out.traceback("ValueError: no such layer", MAIN)[1:],
        ),
        verdict="rank-died",
        culprits=(6,),
        mentions="no such layer",
    ),
    "a link failed": Case(
        output=out.text(
            *out.traceback(
                "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled system error, NCCL "
                "version 2.21.5\nncclSystemError: System call failed\nLast error:\nNET/IB: Got completion from peer "
                "10.9.8.7<41000> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
                MAIN,
                rank=4,
            )
        ),
        verdict="insufficient-evidence",
        mentions="rank 4 was the first to fail",
        advises="ibstat",
    ),
    "mpirun names the first process that failed": Case(
        output=out.text(
            "mpirun detected that one or more processes exited with non-zero status, thus causing",
            "the job to be terminated. The first process to do so was:",
            "",
            "  Process name: [[4711,1],5]",
            "  Exit code:    3",
        ),
        verdict="rank-died",
        culprits=(5,),
        cause="exited",
    ),
    "mpirun breaks its line": Case(
        output=out.text(
            "prterun noticed that process rank 5 with PID 0 on node node-9 exited on", "signal 11 (Segmentation fault)."
        ),
        verdict="rank-died",
        culprits=(5,),
    ),
    "Horovod was shut down": Case(
        output=out.text(
            "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by"
        ),
        verdict="insufficient-evidence",
        mentions="Horovod stopped because a rank raised",
    ),
    "shared memory was full": Case(
        output=out.text(
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory.",
            *out.traceback("ConnectionResetError: [Errno 104] Connection reset by peer", MAIN),
        ),
        verdict="rank-died",
        mentions="shared memory",
        advises="--shm-size",
    ),
    "a traceback in a frame": Case(
        output=out.text(framed("RuntimeError: CUDA error: uncorrectable ECC error encountered")),
        verdict="rank-died",
        mentions="fit.py:61",
        advises="xid",
    ),
    "a traceback in the lines of a server's logger": Case(
        output=out.text(
            *out.traceback(
                "ValueError: no such layer", MAIN, prefix="(VllmWorker rank=2 pid=411) ERROR 11-03 09:14:02 x.py:9] "
            )
        ),
        verdict="rank-died",
        culprits=(2,),
        mentions="no such layer",
    ),
    "the store broke while the first collective was prepared": Case(
        output=out.text(*out.failed_call("barrier", store_get(3, RESET), MAIN)),
        verdict="rank-missing",
        culprits=(0,),
        cause="exited",
        mentions="rank 3 waited for it",
    ),
    "fingerprints over many lines": Case(
        output=out.text(
            "Detected mismatch between collectives on ranks. Rank 0 is running collective:",
            "CollectiveFingerPrint(OpType=ALLREDUCE, TensorShape=[8, 4], TensorDtypes=Float,",
            "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu)),",
            "",
            "but Rank 1 is running collective:",
            "CollectiveFingerPrint(OpType=BROADCAST, TensorShape=[8, 4], TensorDtypes=Float,",
            "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu))",
        ),
        verdict="op-mismatch",
        mentions="rank 0 issued all_reduce where rank 1 issued broadcast",
    ),
    "fingerprints of one operation, of which one lacks its tensors": Case(
        output=out.text(
            out.mismatch(9, out.fingerprint("BROADCAST", [1], 911_455_002), 2, out.fingerprint("BROADCAST", None, 77))
        ),
        verdict="insufficient-evidence",
        mentions="broadcast of rank 9 is not that of rank 2",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_told_is_said_and_nobody_is_accused_of_it(case: Case, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, case.output)

    assert verdict.name == case.verdict
    assert verdict.culprits == case.culprits
    assert case.cause in (None, verdict.cause)
    assert case.mentions in verdict.summary
    assert case.advises in "\n".join(verdict.next_steps)


def test_who_says_at_which_work_it_failed_had_come_to_it(tmp_path: Path) -> None:
    output = out.text(
        *(out.watchdog(rank, 88) for rank in (0, 1, 2, 4)), *(out.status(rank, 88, 90, 87) for rank in (0, 3))
    )

    verdict = verdict_of(tmp_path, output)

    assert verdict.name == "transport-stuck"
    assert verdict.victims == (0, 1, 2, 3, 4)


def test_a_process_that_its_watchdog_aborted_is_no_cause(tmp_path: Path) -> None:
    output = out.text(*(out.old_watchdog(rank, seq=7) for rank in range(4)), launched(-6, 1))

    verdict = verdict_of(tmp_path, output)

    assert verdict.name == "transport-stuck"
    assert not verdict.culprits


def test_a_watchdog_held_up_after_others_gave_up_tells_not_where_its_rank_was(tmp_path: Path) -> None:
    stuck = "[PG ID 2 PG GUID 9 Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"
    output = out.text(*(out.watchdog(rank, 7) for rank in (1, 3)), out.glog(2, stuck, clock="18:49:00.100000001"))

    verdict = verdict_of(tmp_path, output)

    assert verdict.name == "insufficient-evidence"
    assert not verdict.culprits


def test_counters_that_were_never_set_are_not_compared(tmp_path: Path) -> None:
    output = out.mismatch(
        0, out.fingerprint("ALLREDUCE", [4], 911_455_002), 1, out.fingerprint("ALLREDUCE", [9], 77_031_554)
    )

    verdict = verdict_of(tmp_path, out.text(output))

    assert verdict.name == "shape-mismatch"
    assert "ahead" not in verdict.summary


def test_a_host_in_the_name_of_a_file_is_no_rank(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, out.text(*out.traceback("ValueError: x", MAIN)), "gpu012.log")

    assert verdict.name == "rank-died"
    assert not verdict.culprits


@pytest.mark.parametrize(
    "line",
    [
        "node-9:811:902 [0] transport/net_ib.cc:201 NCCL WARN NET/IB : No device found.",
        "node-9:811:902 [0] NCCL INFO [Service thread] Connection closed by localRank 0",
        "deepspeed exits with return code = 0",
    ],
)
def test_what_jobs_print_that_go_well_tells_of_no_failure(line: str, tmp_path: Path) -> None:
    with pytest.raises(DistdiagError, match="tells of a failure"):
        verdict_of(tmp_path, out.text(line))


def test_a_rank_of_which_nothing_is_told_is_not_said_to_run(tmp_path: Path) -> None:
    report = report_of(tmp_path, out.text(*(out.watchdog(rank, 88) for rank in (0, 2, 3))))

    assert report.verdict.culprits == (1,)
    assert {position.doing for position in report.positions if position.rank == 1} == {"not told"}


def test_output_that_names_no_rank_shows_none(tmp_path: Path) -> None:
    report = report_of(tmp_path, out.text(*out.traceback(f"RuntimeError: {RESET}", MAIN, rank=None)))

    assert report.positions == ()
    assert report.triage[POSITION] == "these texts name no rank"


def test_ranks_that_print_nothing_are_not_said_to_lack_a_log(tmp_path: Path) -> None:
    report = report_of(tmp_path, out.text(*out.traceback("ValueError: x", MAIN, rank=3)))

    assert [finding.severity for finding in report.findings if finding.name == "logs-missing"] == ["info"]
