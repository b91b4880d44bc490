"""Whose device, process or connection it was that drivers, libraries and launchers tell of without a rank."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.importers import load
from tests import training_output as out

FAILED = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
    "remote process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly "
    "due to a network error or a remote process exiting prematurely.\nLast error:\n"
)
STEP = ("/app/train.py", 88, "step")
AGENT = (
    "torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: {code}) local_rank: {local} (pid: 4720)"
)
COMPLETION = "NCCL WARN NET/IB : Got completion from peer 10.0.0.1<333> with error 12, opcode 0, len 0, vendor err 129"


def made(host: str, ranks: range) -> list[str]:
    """Return how the processes of a host make their communicator; their devices are plugged in alike on each host."""
    return [
        f"{host}:{100 + rank}:4{rank} [{device}] NCCL INFO ncclCommInitRank comm 0x55{rank:02} rank {rank} nranks "
        f"8 cudaDev {device} nvmlDev {device} busId {device + 1:x}a000 commId 0x6f3c3a - Init COMPLETE"
        for device, rank in enumerate(ranks)
    ]


def lost(rank: int, peer: str) -> list[str]:
    error = f"{FAILED}socketProgress: Connection closed by remote peer {peer}<44321>"
    return out.failed_call("all_reduce", error, STEP, rank=rank)


def xid(pid: int) -> str:
    return f"[12.3] NVRM: Xid (PCI:0000:4a:00): 79, pid={pid}, name=python, GPU has fallen off the bus."


WAITS = [out.watchdog(rank, 41) for rank in range(8)]
SEGFAULT = [
    "Fatal Python error: Segmentation fault",
    "",
    "Current thread 0x00007f1 (most recent call first):",
    '  File "/app/model.py", line 7 in forward',
    "",
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Output of a job, and what is to be said of it."""

    output: list[str]
    verdict: str
    culprits: tuple[int, ...] = ()
    mentions: str = ""
    silent_of: str = "\0"


CASES = {
    "a GPU by where it is plugged in": Case(
        output=[*made("a", range(8)), *WAITS, xid(999)],
        verdict="transport-stuck",
        mentions="on the bus: that is rank 3",
    ),
    "GPUs of two hosts are plugged in alike": Case(
        output=[*made("a", range(4)), *made("b", range(4, 8)), *WAITS, xid(999)],
        verdict="transport-stuck",
        mentions="Xid 79",
        silent_of="that is rank",
    ),
    "the process that used the GPU tells the host": Case(
        output=[*made("a", range(4)), *made("b", range(4, 8)), *WAITS, xid(107)],
        verdict="transport-stuck",
        mentions="that is rank 7",
    ),
    "an adapter gave up": Case(
        output=[*made("a", range(8)), f"a:105:900 [5] transport/net_ib.cc:1295 {COMPLETION}", *WAITS],
        verdict="transport-stuck",
        mentions="(the other side answered no attempt) (on a, GPU 5): that is rank 5",
    ),
    "all lost the same host": Case(
        output=[line for rank in range(3) for line in lost(rank, "worker-3.llm")],
        verdict="insufficient-evidence",
        mentions="connections broke to worker-3.llm alone, as ranks 0-2 said together",
    ),
    "hosts lost one another": Case(
        output=[line for rank in range(4) for line in lost(rank, f"worker-{rank // 2}")],
        verdict="insufficient-evidence",
        silent_of="connections broke",
    ),
    "who found no store": Case(
        output=[
            out.glog(
                rank,
                'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), '
                "with error: failed to recv, got 0 bytes",
            )
            for rank in (1, 2, 3)
        ],
        verdict="insufficient-evidence",
        mentions="the store went away: the process that has it, most often rank 0, had ended before",
    ),
    "a check inside a kernel": Case(
        output=[
            "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [24,0,0], thread: "
            "[96,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
            *out.traceback("RuntimeError: CUDA error: device-side assert triggered", STEP, rank=2),
        ],
        verdict="rank-died",
        culprits=(2,),
        mentions="a check inside a kernel failed: srcIndex < srcSelectDimSize (indexSelectLargeIndex)",
    ),
    "the stack of the one that crashed": Case(
        output=[*SEGFAULT, *out.failure_block(first=(3, -11))],
        verdict="rank-died",
        culprits=(3,),
        mentions="rank 3 aborted with SIGSEGV (model.py:7)",
    ),
    "SLURM's tasks are ranks": Case(
        output=["srun: error: gpu-1: task 1: Out Of Memory"], verdict="rank-died", culprits=(1,), mentions="rank 1"
    ),
    "SLURM's tasks are launchers": Case(
        output=[
            f"1: E0301 10:00:00.000000 47 {AGENT.format(code=-9, local=1)} of binary: /usr/bin/python",
            *("1: " + line for line in out.failure_block(first=(9, -9), local=1)),
            "srun: error: gpu-1: task 1: Exited with exit code 1",
        ],
        verdict="rank-died",
        culprits=(9,),
        silent_of="rank 1 ended",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_names_no_rank_is_told_of_the_one_that_it_is_about(case: Case, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n".join(case.output) + "\n")

    verdict = diagnose(load(tmp_path)).verdict

    said = " ".join((verdict.summary, *verdict.evidence))
    assert (verdict.name, verdict.culprits) == (case.verdict, case.culprits), verdict
    assert case.mentions in said
    assert case.silent_of not in said
    assert "unknown" not in " ".join(verdict.next_steps)


def test_an_error_on_a_host_is_not_of_the_rank_that_alone_is_heard_there(tmp_path: Path) -> None:
    failed = out.traceback("KeyError: 3", STEP)
    lines = [f"worker-2: {line}" for line in (*failed, out.watchdog(3, 41))]
    (tmp_path / "all.log").write_text("\n".join([*lines, *(f"worker-1: {WAITS[rank]}" for rank in (0, 1))]) + "\n")

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits, verdict.victims) == ("rank-died", (2,), (0, 1, 3))
