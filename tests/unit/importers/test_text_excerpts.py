"""Excerpts as people paste them: echoes above their cause, lines of several launchers, few of many ranks."""

import json
from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.importers import load
from tests import training_output as out

MAIN = ("/w/train.py", 10, "main")


def told_by(directory: Path, *lines: str) -> Verdict:
    file = directory / "out.log"
    file.write_text("\n".join(lines) + "\n")
    return diagnose(load(file)).verdict


def test_an_error_above_the_first_line_with_a_moment_came_before_the_time_outs_below_it(tmp_path: Path) -> None:
    raised = out.traceback("ValueError: loss is nan at step 200", MAIN, prefix="3: ")

    verdict = told_by(
        tmp_path, *raised, *(f"{rank}: {out.watchdog(rank, 44, clock=f'18:40:0{rank}.1')}" for rank in (0, 1, 2))
    )

    assert (verdict.name, verdict.culprits, verdict.victims) == ("rank-died", (3,), (0, 1, 2))
    assert "loss is nan" in verdict.summary


def test_a_connection_that_could_not_be_made_is_an_echo(tmp_path: Path) -> None:
    echo = (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, "
        "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3\n"
        "Last error:\nsocketStartConnect: Connect to 10.0.0.3<45123> failed : Software caused connection abort"
    )

    verdict = told_by(
        tmp_path,
        *out.traceback(echo, MAIN, rank=0),
        *out.traceback("FileNotFoundError: [Errno 2] No such file or directory: '/data/3.bin'", MAIN, rank=3),
    )

    assert (verdict.name, verdict.culprits) == ("rank-died", (3,))


def test_of_a_world_of_unknown_size_no_rank_is_left_over(tmp_path: Path) -> None:
    died = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: 90738"
    )
    aborted = out.glog(
        1,
        "[Rank 12] Collective WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=7, NumelOut=7, Timeout(ms)=1800000) raised "
        "the following async exception: NCCL error: remote process exited or there was a network error",
    )

    verdict = told_by(tmp_path, died, f"(RayWorkerWrapper pid=92234, ip=172.19.24.110) {aborted}")

    assert verdict.culprits == ()
    assert "90738" in verdict.summary


def test_the_prefix_of_horovodrun_tells_the_rank(tmp_path: Path) -> None:
    error = "RuntimeError: ncclCommInitRank failed: unhandled cuda error"

    verdict = told_by(tmp_path, *out.traceback(error, MAIN, prefix="[1]<stderr>:"))

    assert (verdict.name, verdict.culprits) == ("rank-died", (1,))


def test_a_rank_beside_the_message_of_a_json_log_is_who_says_it(tmp_path: Path) -> None:
    message = "\n".join(out.traceback("TypeError: x() missing 1 required positional argument", MAIN))
    record = {"level": "error", "ts": 1741000000.1, "rank": 2, "msg": message}

    verdict = told_by(tmp_path, json.dumps(record))

    assert (verdict.name, verdict.culprits) == ("rank-died", (2,))


def test_an_error_of_python_that_was_copied_without_its_traceback_is_its_ranks(tmp_path: Path) -> None:
    closed = "[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.0.0.2]:1234"

    verdict = told_by(tmp_path, closed, "[rank1]: KeyError: 'input_ids'")

    assert (verdict.name, verdict.culprits) == ("rank-died", (1,))
    assert "KeyError: 'input_ids'" in verdict.summary


def test_errors_that_nobody_signs_are_words_like_any(tmp_path: Path) -> None:
    waits = [out.watchdog(rank, 9) for rank in range(4)]

    verdict = told_by(tmp_path, "KeyError: 'x' was skipped, as ValueError: y was", *waits)

    assert (verdict.name, verdict.culprits) == ("transport-stuck", ())


def test_a_bus_error_of_a_loaders_worker_is_of_the_rank_that_lost_one(tmp_path: Path) -> None:
    bus = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
    lost = out.traceback("RuntimeError: DataLoader worker (pid(s) 99) exited unexpectedly", MAIN, rank=2)

    verdict = told_by(tmp_path, bus, *lost)

    assert (verdict.name, verdict.culprits) == ("rank-died", (2,))


def test_what_desync_debugging_saw_is_told_where_nothing_else_is(tmp_path: Path) -> None:
    verdict = told_by(
        tmp_path,
        "[rank0]:[E ProcessGroupNCCL.cpp:475]",
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
        "\t   - [2] joined but didn't finish collective #3, ALLREDUCE",
    )

    assert (verdict.name, verdict.culprits) == ("insufficient-evidence", ())
    assert "rank 2 began collective 3 and did not end it" in verdict.summary
