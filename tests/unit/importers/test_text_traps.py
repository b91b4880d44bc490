"""What looks like trouble in output and is none; and what cannot be told from it."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.errors import DistdiagError
from distdiag.findings import Confidence, Verdict
from distdiag.importers import load
from tests import training_output as out

MAIN = ("/workspace/train.py", 210, "main")
BARRIER = "Waiting in store based barrier to initialize process group for rank: {rank}, key: store_based_barrier_key:1 "


def nccl_lines(*, last: int = 4, without: int | None = None) -> str:
    """What NCCL prints of four ranks that issue the same calls; one may have issued one fewer when the log ends."""
    made = [out.nccl_made(f"gpu1:100{rank}", rank, f"0x55{rank}", rank, 4) for rank in range(4)]
    calls = [
        out.nccl_call(f"gpu1:100{rank}", rank, "AllReduce", 1024, opcount=number, comm=f"0x55{rank}", size=4)
        for number in range(last + 1)
        for rank in range(4)
        if not (number == last and rank == without)
    ]
    return out.text(made, calls)


SILENT = {
    "plain output": out.text("step 1 loss 0.3", "done"),
    "warnings": out.text(
        out.glog(0, "Warning: destroy_process_group() was not called before program exit").replace("[E", "[W"),
        "/x/parallel.py:12: UserWarning: timeout argument is ignored",
    ),
    "waiting that came to an end": out.text(
        *(BARRIER.format(rank=rank) + f"(world_size=2, worker_count={rank}, timeout=0:30:00)" for rank in range(2)),
        *(
            f"Rank {rank}: Completed store-based barrier for key:store_based_barrier_key:1 with 2 nodes."
            for rank in (0, 1)
        ),
    ),
    "stopped by hand": out.text(
        *(line for rank in range(2) for line in out.traceback("KeyboardInterrupt", MAIN, rank=rank))
    ),
}

HARMLESS = {
    "NCCL lines of a healthy job": nccl_lines(),
    "NCCL lines of a log that ends between two ranks": nccl_lines(without=3),
    "an error that was handled": out.text(
        "2025-12-06 12:00:00,000 ERROR upload failed",
        *out.traceback("OSError: [Errno 5] Input/output error", MAIN),
        *(f"2025-12-06 12:0{minute}:00,000 INFO step {minute}" for minute in range(1, 9)),
    ),
}

CANNOT_TELL = {
    "one rank of eight speaks": out.text(out.watchdog(7, 5)),
    "half of the ranks are silent": out.text(
        *(out.watchdog(rank, 88, "_ALLGATHER_BASE", numel=10, output=160) for rank in range(8))
    ),
    "a scheduler stopped the job": out.text("srun: error: node-1: tasks 0-3: Terminated"),
    "one line of many calls": out.text(
        *(line for rank in range(3) for line in out.failed_call("all_reduce", out.gloo_timeout(), MAIN, rank=rank))
    ),
    "which of two silent clients did not join": out.text(
        *out.failed_call(
            "init_process_group",
            "torch.distributed.DistStoreError: Timed out after 7 seconds waiting for clients. 2/3 clients joined.",
            MAIN,
            rank=0,
        )
    ),
    "members of a group are not told": out.text(
        *(out.watchdog(rank, 7, group="PG ID 2 PG GUID 9(ep)", group_rank=rank) for rank in (0, 1))
    ),
    "the same operation at different numbers": out.text(out.watchdog(0, 9), out.watchdog(1, 7), out.watchdog(2, 7)),
}


def verdict_of(tmp_path: Path, output: str) -> Verdict:
    (tmp_path / "train.log").write_text(output)
    return diagnose(load(tmp_path / "train.log")).verdict


@pytest.mark.parametrize("output", SILENT.values(), ids=SILENT)
def test_output_without_a_failure_is_refused_with_a_hint(output: str, tmp_path: Path) -> None:
    with pytest.raises(DistdiagError, match=r"tells of a failure|is understood") as caught:
        verdict_of(tmp_path, output)

    assert caught.value.hint


@pytest.mark.parametrize("output", HARMLESS.values(), ids=HARMLESS)
def test_what_ends_well_or_just_ends_raises_no_alarm_and_proves_nothing(output: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, output)

    assert verdict.name == "healthy"
    assert verdict.confidence is Confidence.LOW


@pytest.mark.parametrize("output", CANNOT_TELL.values(), ids=CANNOT_TELL)
def test_what_text_cannot_tell_is_not_guessed(output: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, output)

    assert verdict.name == "insufficient-evidence"
    assert not verdict.culprits


def test_an_error_that_ends_the_output_was_not_handled(tmp_path: Path) -> None:
    output = out.text("2025-12-06 12:00:00,000 INFO step 1", *out.traceback("OSError: x", MAIN), "wandb: run history")

    assert verdict_of(tmp_path, output).name == "rank-died"


def test_more_processes_than_ranks_leave_nobody_missing(tmp_path: Path) -> None:
    line = BARRIER.format(rank=0) + "(world_size=4, worker_count=8, timeout=0:30:00)"

    verdict = verdict_of(tmp_path, out.text(line))

    assert verdict.name == "group-creation-stuck"
    assert not verdict.culprits
    assert any("8 processes" in each for each in verdict.evidence)


def test_a_lost_node_is_named_and_said_to_be_a_guess(tmp_path: Path) -> None:
    verdict = verdict_of(
        tmp_path, out.text(*(out.watchdog(rank, 88, "_ALLGATHER_BASE", numel=10, output=320) for rank in range(24)))
    )

    assert verdict.name == "rank-missing"
    assert verdict.culprits == tuple(range(24, 32))
    assert verdict.confidence is Confidence.LOW


def test_errors_that_follow_from_an_abort_are_no_cause(tmp_path: Path) -> None:
    aborted = "RuntimeError: NCCL communicator was aborted on rank 0."
    output = out.text(
        *(out.watchdog(rank, 88) for rank in range(4)),
        *(line for rank in range(4) for line in out.failed_call("barrier", aborted, MAIN, rank=rank)),
    )

    verdict = verdict_of(tmp_path, output)

    assert verdict.name == "transport-stuck"
    assert not verdict.culprits
