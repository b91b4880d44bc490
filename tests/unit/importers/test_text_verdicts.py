"""Verdicts on what jobs print, where there is nothing but text."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Confidence, Report
from distdiag.importers import load
from tests import training_output as out

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "log_lines"
MAIN = ("/workspace/train.py", 210, "main")
LOSS = ("/workspace/train.py", 88, "train_step")
SAVE = ("/workspace/save.py", 31, "save_best")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Output of a job, and what is to be said of it."""

    output: str
    verdict: str
    culprits: tuple[int, ...] = ()
    cause: str | None = None
    op: str | None = None
    seq: int | None = None
    site: str | None = None
    victims: tuple[int, ...] | None = None
    mentions: str = ""


CASES = {
    "rank 0 left the loop and printed nothing": Case(
        output=out.text(*(out.watchdog(rank, 19) for rank in (1, 2, 3))),
        verdict="rank-missing",
        culprits=(0,),
        op="all_reduce",
        seq=19,
        victims=(1, 2, 3),
    ),
    "rank 1 is one collective behind": Case(
        output=out.text(
            *(out.watchdog(rank, 21937, "_ALLGATHER_BASE", numel=1024, output=4096) for rank in (0, 2, 3)),
            *(out.status(rank, 21937, 21937, 21936) for rank in (0, 2, 3)),
            out.dump_signal(1, 21936, 21936),
        ),
        verdict="rank-missing",
        culprits=(1,),
        op="all_gather_into_tensor",
        seq=21937,
        victims=(0, 2, 3),
    ),
    "out of memory long before the time-outs": Case(
        output=out.text(
            "2025-12-06 18:29:59,000 INFO step 15733",
            out.traceback(out.out_of_memory(2), MAIN, LOSS, rank=2),
            *(out.watchdog(rank, 15734) for rank in (0, 1, 3, 4, 5, 6, 7)),
            *(line for rank in range(8) for line in out.consequences(rank)),
        ),
        verdict="out-of-memory",
        culprits=(2,),
        cause="out-of-memory",
        site="/workspace/train.py:88",
        victims=(0, 1, 3, 4, 5, 6, 7),
    ),
    "out of memory without a rank, but with a device": Case(
        output=out.text(
            out.traceback(out.out_of_memory(2), MAIN, LOSS),
            *(out.old_watchdog(rank) for rank in (0, 1, 3)),
        ),
        verdict="out-of-memory",
        culprits=(2,),
    ),
    "out of memory, the others ran ahead": Case(
        output=out.text(
            "[rank3]: " + out.out_of_memory(3),
            *(out.dump_signal(rank, 79209, 79196) for rank in (0, 1, 2)),
        ),
        verdict="out-of-memory",
        culprits=(3,),
    ),
    "killed by the kernel": Case(
        output=out.text(
            "W1206 18:30:00.000000 139 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4000 "
            "closing "
            "signal SIGTERM",
            "E1206 18:30:00.100000 139 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) "
            "local_rank: 2 (pid: 4002) of binary: /opt/venv/bin/python",
            out.failure_block(first=(2, -9)),
        ),
        verdict="rank-died",
        culprits=(2,),
        cause="killed",
    ),
    "torn down after another had died": Case(
        output=out.text(out.failure_block((0, -15), (1, -15), (3, -15), first=(2, -11))),
        verdict="rank-died",
        culprits=(2,),
        cause="aborted",
        mentions="SIGSEGV",
    ),
    "three ranks raise, five time out": Case(
        output=out.text(
            "[rank5]:[W1206 18:12:00.000000001 ProcessGroupNCCL.cpp:100] using GPU 5",
            *(
                line
                for rank in (5, 6, 7)
                for line in out.traceback("RuntimeError: batch size must be positive", MAIN, LOSS, rank=rank)
            ),
            *(out.watchdog(rank, 77, "ALLTOALL_BASE", numel=64, lasted_ms=1_670_000) for rank in range(5)),
        ),
        verdict="rank-died",
        culprits=(5, 6, 7),
        cause="exception",
        site="/workspace/train.py:88",
    ),
    "fingerprints of different shapes": Case(
        output=out.text(
            out.failed_call(
                "all_reduce",
                out.mismatch(
                    0,
                    out.fingerprint("ALLREDUCE", [51123456], 3103),
                    1,
                    out.fingerprint("ALLREDUCE", [195812480], 3103),
                ),
                MAIN,
                LOSS,
                rank=0,
            )
        ),
        verdict="shape-mismatch",
        seq=3104,
    ),
    "fingerprints of a barrier and a broadcast": Case(
        output=out.text(
            *(
                out.failed_call(
                    "barrier",
                    out.mismatch(
                        rank, out.fingerprint("BARRIER", None, 19), 1, out.fingerprint("BROADCAST", [1], 19, "Long")
                    ),
                    MAIN,
                    SAVE,
                    rank=rank,
                )
                for rank in (0, 2, 3)
            ),
        ),
        verdict="sequence-divergence",
        culprits=(1,),
        seq=20,
    ),
    "a monitored barrier names who is missing": Case(
        output=out.text(
            out.glog(
                0,
                "[Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 5000 ms",
                file="ProcessGroupGloo.cpp:67",
            ),
            *(
                out.glog(
                    rank,
                    f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
                    f"send/recv "
                    "from rank 0. Please check rank 0 logs for faulty rank.",
                    file="ProcessGroupGloo.cpp:67",
                )
                for rank in (1, 2, 3)
            ),
        ),
        verdict="rank-missing",
        culprits=(4, 5, 6, 7),
    ),
    "rank 0 never came to its first collective": Case(
        output=out.text(
            *(
                line
                for rank in range(1, 8)
                for line in out.failed_call(
                    "barrier",
                    f"torch.distributed.DistBackendError: [{rank}] is setting up NCCL communicator and retrieving "
                    "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait "
                    "timeout "
                    "after 600000ms, keys: /none/torchelastic/role_None/default_pg/0//cuda//0",
                    MAIN,
                    rank=rank,
                )
            )
        ),
        verdict="rank-missing",
        culprits=(0,),
        victims=(1, 2, 3, 4, 5, 6, 7),
    ),
    "two of three clients joined": Case(
        output=out.text(
            out.failed_call(
                "init_process_group",
                "torch.distributed.DistStoreError: Timed out after 7 seconds waiting for clients. 2/3 clients joined.",
                MAIN,
                rank=0,
            ),
            out.failed_call(
                "init_process_group",
                "torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//cpu//0/0",
                MAIN,
                rank=1,
            ),
        ),
        verdict="rank-missing",
        culprits=(2,),
        op="init_process_group",
    ),
    "one found no store while the others did": Case(
        output=out.text(
            out.failed_call(
                "init_process_group",
                "torch.distributed.DistStoreError: Timed out after 5 seconds waiting for clients. 2/3 clients joined.",
                MAIN,
                rank=0,
            ),
            out.failed_call(
                "init_process_group",
                "torch.distributed.DistStoreError: wait timeout after 4000ms, keys: /default_pg/0//cpu//0/0",
                MAIN,
                rank=1,
            ),
            out.failed_call(
                "init_process_group",
                "torch.distributed.DistNetworkError: The client socket has timed out after 4000ms while trying to "
                "connect to (10.0.0.1, 29501).",
                MAIN,
                rank=2,
            ),
        ),
        verdict="rank-missing",
        culprits=(2,),
        mentions="10.0.0.1:29501",
    ),
    "one was told of a larger world": Case(
        output=out.text(
            *(line for rank in (0, 1) for line in out.failed_call("barrier", out.gloo_timeout(), MAIN, rank=rank)),
            out.failed_call(
                "init_process_group",
                "torch.distributed.DistStoreError: wait timeout after 4000ms, keys: /default_pg/0//cpu//0/3",
                MAIN,
                rank=2,
            ),
        ),
        verdict="group-creation-stuck",
        culprits=(2,),
        mentions="rank 3 leaves in the store",
    ),
    "two launches share a store": Case(
        output=out.text(
            *(
                f"Waiting in store based barrier to initialize process group for rank: {rank}, key: "
                "store_based_barrier_key:1 (world_size=4, worker_count=8, timeout=0:30:00)"
                for rank in range(4)
            )
        ),
        verdict="group-creation-stuck",
        mentions="8 processes",
    ),
    "rank 0 alone evaluates": Case(
        output=out.text(
            out.failed_call("all_reduce", out.gloo_timeout(), MAIN, SAVE, rank=0),
            *(line for rank in (1, 2, 3) for line in out.failed_call("barrier", out.gloo_timeout(), MAIN, rank=rank)),
        ),
        verdict="sequence-divergence",
        culprits=(0,),
        site="/workspace/save.py:31",
    ),
    "two ranks, two sites, nobody to blame": Case(
        output=out.text(
            out.failed_call("all_reduce", out.gloo_timeout(), MAIN, SAVE, rank=0),
            out.failed_call("barrier", out.gloo_timeout(), MAIN, rank=1),
        ),
        verdict="sequence-divergence",
    ),
    "gloo aborts where sizes differ": Case(
        output=out.text(
            out.failed_call("all_reduce", out.gloo_closed(), MAIN, LOSS, rank=0),
            "[rank1]: terminate called after throwing an instance of 'gloo::EnforceNotMet'",
            "[rank1]:   what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] "
            "op.preamble.length <= op.nbytes. 12 vs 8. Received data size doesn't match expected size.",
        ),
        verdict="shape-mismatch",
    ),
    "NCCL's own lines show another function": Case(
        output=out.text(
            *(out.nccl_made("gpu1:100" + str(rank), rank, f"0x55{rank}", rank, 4) for rank in range(4)),
            *(
                out.nccl_call(f"gpu1:100{rank}", rank, "AllReduce", 1024, opcount=n, comm=f"0x55{rank}", size=4)
                for n in (0x28A, 0x28B)
                for rank in range(4)
            ),
            *(
                out.nccl_call(
                    f"gpu1:100{rank}",
                    rank,
                    "AllGather" if rank == 2 else "AllReduce",
                    1024,
                    opcount=0x28C,
                    comm=f"0x55{rank}",
                    size=4,
                )
                for rank in range(4)
            ),
        ),
        verdict="sequence-divergence",
        culprits=(2,),
        seq=0x28C + 1,
    ),
    "all ranks in one collective, a port failed": Case(
        output=out.text(
            "node-2:771:902 [3] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
            *(out.watchdog(rank, 4711, "_REDUCE_SCATTER_BASE", numel=4096, output=1024) for rank in range(4)),
        ),
        verdict="transport-stuck",
        seq=4711,
        mentions="port error",
    ),
    "one line of one rank": Case(
        output=out.text(out.watchdog(7, 5)),
        verdict="insufficient-evidence",
    ),
    "a whole node is silent": Case(
        output=out.text(*(out.watchdog(rank, 88, "_ALLGATHER_BASE", numel=10, output=160) for rank in range(8))),
        verdict="insufficient-evidence",
    ),
    "watchdogs that could not run": Case(
        output=out.text(
            *(out.watchdog(rank, 93, "_ALLGATHER_BASE", numel=8, output=64) for rank in (0, 1, 2, 3, 4, 6)),
            *(
                out.glog(
                    rank,
                    f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] ProcessGroupNCCL's watchdog got stuck for 480 "
                    f"seconds "
                    "without making progress in monitoring enqueued collectives. This typically indicates a "
                    "NCCL/CUDA API …",
                    file="ProcessGroupNCCL.cpp:1375",
                )
                for rank in (5, 7)
            ),
        ),
        verdict="rank-missing",
        culprits=(5, 7),
        cause="frozen",
    ),
    "rank 0 is two collectives ahead, in another operation": Case(
        output=out.text(
            out.watchdog(1, 532339, "BROADCAST", numel=8),
            out.watchdog(2, 532339, "BROADCAST", numel=8),
            out.watchdog(0, 532341, "_ALLGATHER_BASE", numel=513, output=1539),
        ),
        verdict="sequence-divergence",
        culprits=(0,),
    ),
    "rank 0 still tokenizes": Case(
        output=out.text(
            "Running tokenizer on dataset:   8%|▊         | 80000/1000000 [27:10<5:12:01, 49.13 examples/s]\r"
            "Running tokenizer on dataset:   9%|▉         | 90000/1000000 [29:55<5:02:34, 50.12 examples/s]"
            + out.watchdog(1, 2, lasted_ms=1_800_200),
            out.watchdog(2, 2, lasted_ms=1_800_210),
            out.watchdog(3, 2, lasted_ms=1_800_190),
        ),
        verdict="late-rank",
        culprits=(0,),
        mentions="Running tokenizer on dataset",
    ),
    "Horovod names the stalled rank": Case(
        output=out.text(
            "[1,0]<stderr>:[2020-05-11 11:53:02.302112: W horovod/common/stall_inspector.cc:105] One or more "
            "tensors were "
            "submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of "
            "ranks for "
            "more than 60 seconds. This may indicate that different ranks are trying to submit different tensors.",
            "[1,0]<stderr>:Stalled ranks:",
            "[1,0]<stderr>:4: [DistributedAdam_Allreduce/cond/grad_1, DistributedAdam_Allreduce/cond/grad_2]",
        ),
        verdict="rank-missing",
        culprits=(4,),
        mentions="grad_1",
    ),
    "RAS lists who launched less": Case(
        output=out.text(
            "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
            "    #  in group  per comm  per node  per comm  in group",
            "    0         1         1         8         8         8   RUNNING  MISMATCH",
            "Warnings",
            "#0-0 (27a079b828ff1a75) MISMATCH",
            "  Communicator ranks have different collective operation counts",
            "  7 ranks have launched up to operation 6650",
            "  1 rank has launched up to operation 6649",
            "  Rank 4 -- GPU 4 managed by process 483072 on node 172.16.64.210",
        ),
        verdict="rank-missing",
        culprits=(4,),
    ),
    "a worker of a data loader was killed": Case(
        output=out.text(
            out.traceback(
                "RuntimeError: DataLoader worker (pid 771) is killed by signal: Bus error. It is possible that "
                "dataloader's "
                "workers are out of shared memory.",
                MAIN,
                LOSS,
                rank=3,
            ),
            *(out.watchdog(rank, 40) for rank in (0, 1, 2)),
        ),
        verdict="rank-died",
        culprits=(3,),
        mentions="Bus error",
    ),
    "SLURM counts tasks": Case(
        output=out.text(
            "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
            "srun: error: node-3: task 5: Out Of Memory",
            "srun: error: node-1: tasks 0-4: Terminated",
        ),
        verdict="rank-died",
        culprits=(5,),
        cause="killed",
        mentions="memory",
    ),
    "an error that was handled is no death": Case(
        output=out.text(
            "2025-12-06 12:00:00,000 ERROR upload failed",
            out.traceback("OSError: [Errno 5] Input/output error", MAIN, SAVE, rank=1),
            *(out.watchdog(rank, 900) for rank in (0, 1, 2)),
            out.status(3, 899, 899, 899),
        ),
        verdict="rank-missing",
        culprits=(3,),
    ),
    "everybody raises the same": Case(
        output=out.text(
            *(line for rank in range(3) for line in out.traceback("ValueError: bad configuration", MAIN, rank=rank)),
        ),
        verdict="rank-died",
        culprits=(),
        mentions="bad configuration",
    ),
    "those that are heard of failed, and others are not heard of": Case(
        output=out.text(out.failure_block((7, 1), first=(6, 1))),
        verdict="rank-died",
        culprits=(6, 7),
        mentions="exit code 1",
    ),
}


def report_of(tmp_path: Path, output: str, name: str = "train.log") -> Report:
    (tmp_path / name).write_text(output)
    return diagnose(load(tmp_path))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_text_gives_the_verdict(case: Case, tmp_path: Path) -> None:
    verdict = report_of(tmp_path, case.output).verdict

    assert verdict.name == case.verdict, verdict
    assert verdict.culprits == case.culprits, verdict
    for name in ("cause", "op", "seq", "site", "victims"):
        if getattr(case, name) is not None:
            assert getattr(verdict, name) == getattr(case, name), (name, verdict)
    assert case.mentions in " ".join((verdict.summary, *verdict.evidence))
    assert verdict.step is None
    assert verdict.confidence is not Confidence.HIGH


def test_what_torchrun_itself_raises_is_no_ranks_error(tmp_path: Path) -> None:
    raised = out.traceback(
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        ("/site-packages/torch/distributed/launcher/api.py", 383, "launch_agent"),
    )

    report = report_of(tmp_path, out.text(raised, out.failure_block((0, -15), first=(1, 1))))

    assert report.verdict.culprits == (1,)
    assert "ChildFailedError" not in str(report)
    assert "--redirects" in " ".join(report.verdict.next_steps)


REAL = {
    "local_01": ("sequence-divergence", ()),
    "local_02": ("shape-mismatch", ()),
    "local_03": ("op-mismatch", ()),
    "local_04": ("rank-missing", (1,)),
    "local_05": ("rank-missing", (2,)),
}
"""Verdicts on the output of real programs; two ranks are no majority."""


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared lines are not here")
@pytest.mark.parametrize(("name", "expected"), REAL.items(), ids=REAL)
def test_real_output_gives_the_verdict(name: str, expected: tuple[str, tuple[int, ...]]) -> None:
    (file,) = SHARED.glob(f"{name}_*.log")

    verdict = diagnose(load(file)).verdict

    assert (verdict.name, verdict.culprits) == expected
