"""What drivers, launchers and libraries beside NCCL print of devices, processes and connections that failed."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.importers import load
from tests import training_output as out

STUCK = (
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."
)
UNREDUCED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that "
    "your module has parameters that were not used in producing loss."
)


def verdict_of(tmp_path: Path, *lines: str) -> Verdict:
    (tmp_path / "train.log").write_text(out.text(*lines))
    return diagnose(load(tmp_path)).verdict


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "[1084.07] NVRM: Xid (PCI:0000:0a:00): 79, pid=0, GPU has fallen off the bus.",
            "the driver reported Xid 79 of GPU PCI:0000:0a:00: it is no longer on the bus",
        ),
        (
            "Feb 14 05:03:43 node-1 kernel: NVRM: Xid (PCI:0000:4e:00): 94, pid=4711, name=python3, Contained: SM",
            "the driver reported Xid 94 of GPU PCI:0000:4e:00 (process 4711): its memory has an error",
        ),
        (
            "[77.1] NVRM: GPU 0000:0a:00.0: GPU has fallen off the bus.",
            "the driver reported that GPU 0000:0a:00.0 is no longer on the bus",
        ),
        (
            "HW Exception by GPU node-3 (Agent handle: 0x9d0) reason :GPU Hang",
            "AMD's runtime said: HW Exception by GPU node-3",
        ),
        (
            "EI0006: 2024-08-05-18:15:21.270.506 Getting socket times out. Reason: Remote Rank did not send the data.",
            "HCCL said: Getting socket times out",
        ),
        (
            "[rank1]:[E528 08:52:46.16 ProcessGroupGloo.cpp:145] Gloo connectFullMesh failed with [/p/tcp/pair.cc:144] "
            "no error",
            "gloo could not connect the ranks with one another: [/p/tcp/pair.cc:144]",
        ),
        (
            "node-0:3468:3905 [4] p.c:16 NCCL WARN NET/IB : Got completion from peer 10.2.1.2<5486> with status=12 "
            "opcode=0 len=0 vendor err 129 (Recv)",
            "transport warning of NCCL: NET/IB : Got completion from peer 10.2.1.2<5486> with status=12",
        ),
    ],
)
def test_what_libraries_and_drivers_say_is_told_without_accusing_a_rank(line: str, said: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, line)

    assert verdict.name == "insufficient-evidence"
    assert verdict.culprits == ()
    assert said in verdict.summary


@pytest.mark.parametrize(
    ("line", "culprits", "cause"),
    [
        ("ERROR:composer.cli.launcher:Global rank 3 (PID 208865) exited with code -11", (3,), "aborted"),
        ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -9.", (2,), "killed"),
        ("/var/spool/job/slurm_script: line 44: 120345 Killed                  python train.py", (), "killed"),
        ("run.sh: line 3:  4711 Segmentation fault      (core dumped) python train.py", (), "aborted"),
    ],
)
def test_how_launchers_and_shells_tell_the_end_of_a_process(
    line: str, culprits: tuple[int, ...], cause: str, tmp_path: Path
) -> None:
    verdict = verdict_of(tmp_path, "step 1200 loss 1.9", line)

    assert (verdict.name, verdict.culprits, verdict.cause) == ("rank-died", culprits, cause)


def test_the_tail_of_a_failure_block_is_read(tmp_path: Path) -> None:
    block = out.failure_block(first=(1, -11))
    begins = next(number for number, line in enumerate(block) if "rank      : 1" in line)

    verdict = verdict_of(tmp_path, *block[begins:])

    assert (verdict.name, verdict.culprits) == ("rank-died", (1,))


def test_a_process_that_its_watchdog_s_monitor_ended_is_not_said_to_have_died_of_itself(tmp_path: Path) -> None:
    verdict = verdict_of(
        tmp_path,
        out.glog(5, f"[PG ID 0 PG GUID 0(default_pg) Rank 5] {STUCK}"),
        "E1206 18:48:04.1 4711 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -6) "
        "local_rank: 0 (pid: 8124) of binary: /usr/bin/python",
    )

    assert verdict.name == "insufficient-evidence"
    assert "watchdog thread of rank 5 could not run for 480 s" in verdict.summary


def test_an_abort_that_was_cut_off_before_its_reason_is_no_cause(tmp_path: Path) -> None:
    verdict = verdict_of(
        tmp_path,
        out.watchdog(2, 1),
        out.watchdog(3, 1),
        "terminate called after throwing an instance of 'std::runtime_error'",
    )

    assert verdict.name == "insufficient-evidence"


def test_a_time_out_that_a_terminal_broke_behind_its_rank_is_a_time_out(tmp_path: Path) -> None:
    verdict = verdict_of(
        tmp_path,
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: "
        "[Rank 2]",
        " Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST, NumelIn=112, NumelOut=112,"
        " Timeout(ms)=1800000) ran for 1800010 milliseconds before timing out.",
    )

    assert verdict.name == "insufficient-evidence"
    assert "broadcast 4" in verdict.summary


def test_an_error_of_the_device_is_of_the_rank_whose_watchdog_saw_it(tmp_path: Path) -> None:
    verdict = verdict_of(
        tmp_path,
        *out.traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered", ("/w/train.py", 3, "f")),
        "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: "
        "uncorrectable ECC error encountered",
    )

    assert (verdict.name, verdict.culprits, verdict.site) == ("rank-died", (1,), "/w/train.py:3")


@pytest.mark.parametrize("before", ["", "RuntimeError: "], ids=["torn from its type", "whole"])
def test_parameters_without_gradients_are_told(before: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, "pred = model(imgs)", f"{before}{UNREDUCED}")

    assert verdict.name == "rank-died"
    assert "Expected to have finished reduction" in verdict.summary


def test_hccl_that_waited_for_another_rank_accuses_nobody(tmp_path: Path) -> None:
    verdict = verdict_of(
        tmp_path,
        *out.failed_call(
            "all_reduce",
            "RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: "
            "HcclAllreduce, error code is 6",
            ("/w/train.py", 3, "f"),
            rank=1,
        ),
    )

    assert verdict.name == "insufficient-evidence"
    assert verdict.culprits == ()


def test_the_error_handler_s_json_is_read(tmp_path: Path) -> None:
    verdict = verdict_of(
        tmp_path,
        "ERROR:torch.distributed.elastic.multiprocessing.errors.error_handler:{",
        '  "message": {',
        '    "message": "RendezvousTimeoutError: ",',
        '    "extraInfo": {"timestamp": "1645000000"}',
    )

    assert verdict.name == "insufficient-evidence"
    assert "RendezvousTimeoutError" in verdict.summary


def test_several_silent_ranks_of_an_excerpt_are_not_taken_to_be_missing(tmp_path: Path) -> None:
    few = verdict_of(tmp_path, *(out.old_watchdog(rank, seq=7) for rank in (2, 3, 4)))
    many = verdict_of(tmp_path, *(out.old_watchdog(rank, seq=7) for rank in (2, 3, 4, 5, 6)))

    assert (few.name, few.culprits) == ("insufficient-evidence", ())
    assert (many.name, many.culprits) == ("rank-missing", (0, 1))
