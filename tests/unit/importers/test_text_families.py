"""Every kind of line is recognised, read, and given its role in the story."""

from pathlib import Path

import pytest

from distdiag.importers._text.facts import (
    CallSite,
    CommunicatorRank,
    Ended,
    Frozen,
    Issued,
    Missed,
    Progress,
    Raised,
    Remark,
    Restarted,
    Role,
    Speaker,
    Stacked,
    Torn,
    Waited,
    What,
    World,
)
from distdiag.importers._text.reader import BLOCKS, FAMILIES, Transcript, transcribe
from tests import training_output as out

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "log_lines"


def transcript(tmp_path: Path, *parts: str) -> Transcript:
    file = tmp_path / "train.log"
    file.write_text(out.text(*parts))
    return transcribe(file, 0)


def whats(tmp_path: Path, *parts: str) -> list[What]:
    return [said.what for said in transcript(tmp_path, *parts).said]


def test_names_of_kinds_are_unique() -> None:
    names = [family.name for family in FAMILIES] + [block.name for block in BLOCKS]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("line", "role"),
    [
        (out.watchdog(1, 7), Role.CASCADE),
        (out.status(1, 7, 9, 6), Role.CASCADE),
        (out.consequences(1)[0], Role.TEARDOWN),
        (out.consequences(1)[1], Role.TEARDOWN),
        ("[rank0]: " + out.out_of_memory(), Role.INITIATING),
        ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 5000 ms", Role.INITIATING),
        ("Rank 3 successfully reached monitoredBarrier, but received errors", Role.CASCADE),
        ("W1206 18:30:00.0 1 torch/x.py:9] Sending process 4000 closing signal SIGTERM", Role.TEARDOWN),
        ("node:1:2 [0] NCCL WARN NET/IB : Got async event : port error", Role.UNKNOWN),
        ("loss 0.3, step 17", Role.UNKNOWN),
    ],
)
def test_lines_have_a_role(line: str, role: Role) -> None:
    roles = [family.role for family in FAMILIES if any(needle in line for needle in family.needles)]

    assert [*roles, Role.UNKNOWN][0] is role


def test_time_outs_of_all_ages_are_read(tmp_path: Path) -> None:
    new, middle, oldest = whats(
        tmp_path,
        out.watchdog(
            3, 81, "_ALLGATHER_BASE", numel=513, output=1026, group="PG ID 4 PG GUID 17(mesh_ulysses)", group_rank=1
        ),
        out.old_watchdog(1, seq=9),
        out.old_watchdog(0),
    )

    assert isinstance(new, Waited)
    assert isinstance(middle, Waited)
    assert isinstance(oldest, Waited)
    assert (new.op, new.seq, new.numel, new.output_numel) == ("all_gather_into_tensor", 81, 513, 1026)
    assert new.group is not None
    assert (new.group.name, new.group.description, new.group.rank) == ("17", "mesh_ulysses", 1)
    assert (middle.op, middle.seq, middle.group_rank, middle.lasted_ms) == ("all_reduce", 9, 1, 1_808_499)
    assert (oldest.seq, oldest.group, oldest.group_rank) == (None, None, 0)


@pytest.mark.parametrize(
    "text",
    [
        "Timeout at NCCL work: 7, last enqueued NCCL work: 9, last completed NCCL work: 6.",
        "Exception (either an error or timeout) detected by watchdog at work: 7, last enqueued NCCL work: 9, "
        "last completed NCCL work: 6.",
        " failure detected by watchdog at work sequence id: 7 PG status: last enqueued work: 9, last completed work: 6",
    ],
)
def test_progress_is_read_in_every_wording(text: str, tmp_path: Path) -> None:
    (progress,) = whats(tmp_path, out.glog(0, "[PG 1 Rank 0] " + text))

    assert isinstance(progress, Progress)
    assert (progress.enqueued, progress.completed) == (9, 6)
    assert progress.group is not None
    assert progress.group.name == "1"


@pytest.mark.parametrize("completed", [-1, 3452013982])
def test_counters_that_were_never_set_count_nothing(completed: int, tmp_path: Path) -> None:
    (progress,) = whats(tmp_path, out.status(0, 1, 1, completed))

    assert isinstance(progress, Progress)
    assert progress.completed == 0


def test_a_dump_signal_tells_how_far_a_rank_came(tmp_path: Path) -> None:
    progress, _ = whats(tmp_path, out.dump_signal(4, 79209, 79196))

    assert isinstance(progress, Progress)
    assert (progress.enqueued, progress.completed) == (79209, 79196)


def test_the_stack_of_the_failed_collective_is_read(tmp_path: Path) -> None:
    said = whats(
        tmp_path,
        out.watchdog(0, 7),
        out.glog(0, "Stack trace of the failed collective: "),
        "#0 all_reduce from /opt/venv/torch/distributed/distributed_c10d.py:2450",
        "#1 train_step from /workspace/train.py:88",
        "",
    )

    assert said[1] == CallSite(
        frames=(
            "/opt/venv/torch/distributed/distributed_c10d.py:2450 all_reduce",
            "/workspace/train.py:88 train_step",
        )
    )


def test_a_held_up_watchdog_is_read(tmp_path: Path) -> None:
    (frozen,) = whats(
        tmp_path,
        out.glog(5, "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring"),
    )

    assert frozen == Frozen(seconds=480)


def test_both_sides_of_a_fingerprint_mismatch_are_read(tmp_path: Path) -> None:
    mine, theirs = whats(
        tmp_path,
        out.mismatch(0, out.fingerprint("BARRIER", None, 21), 2, out.fingerprint("ALLREDUCE", [4, 8], 21)),
    )

    assert isinstance(mine, Issued)
    assert isinstance(theirs, Issued)
    assert (mine.rank, mine.op, mine.seq, mine.shapes) == (0, "barrier", 22, ())
    assert (theirs.rank, theirs.op, theirs.shapes, theirs.dtype) == (2, "all_reduce", ((4, 8),), "float32")


def test_a_sequence_number_that_is_no_number_is_not_used(tmp_path: Path) -> None:
    mine, _ = whats(
        tmp_path,
        out.mismatch(0, out.fingerprint("ALLREDUCE", [1], 94_000_000_000), 1, out.fingerprint("BARRIER", None, 1)),
    )

    assert isinstance(mine, Issued)
    assert mine.seq is None


def test_several_missing_ranks_of_a_monitored_barrier_are_read(tmp_path: Path) -> None:
    (missed,) = whats(tmp_path, "[Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 5000 ms")

    assert isinstance(missed, Missed)
    assert (missed.ranks, missed.by, missed.timeout_ms) == ((4, 5, 6, 7), 0, 5000)


@pytest.mark.parametrize("verb", ["retrieving", "retreiving"])
def test_who_had_not_made_the_communicator_is_read(verb: str, tmp_path: Path) -> None:
    (missed,) = whats(
        tmp_path,
        f"RuntimeError: [7] is setting up NCCL communicator and {verb} ncclUniqueId from [0] via c10d key-value "
        f"store by "
        "key '0', but store->get('0') got error: Timeout waiting for key: default_pg/0/0 after 1800000 ms",
    )

    assert isinstance(missed, Missed)
    assert (missed.by, missed.ranks, missed.timeout_ms) == (7, (0,), 1_800_000)


def test_clients_that_joined_are_counted(tmp_path: Path) -> None:
    world, missed = whats(tmp_path, "Timed out after 7 seconds waiting for clients. 2/3 clients joined.")

    assert world == World(size=3)
    assert isinstance(missed, Missed)
    assert (missed.came, missed.size) == (2, 3)


@pytest.mark.parametrize(
    "line",
    [
        "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 "
        "(world_size=4, worker_count=8, timeout=0:30:00)",
        "Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 "
        "(world_size=4, num_workers_joined=8, timeout=0:30:00)",
    ],
)
def test_more_workers_than_the_world_has_are_remarked_on(line: str, tmp_path: Path) -> None:
    world, missed, remark = whats(tmp_path, line)

    assert world == World(size=4)
    assert isinstance(missed, Missed)
    assert isinstance(remark, Remark)
    assert "8 processes" in remark.text


def test_a_traceback_is_read_with_its_frames_and_without_the_marks_below_them(tmp_path: Path) -> None:
    (raised,) = whats(
        tmp_path,
        *out.traceback("ValueError: bad sample", ("train.py", 9, "<module>"), ("train.py", 4, "main"), rank=2),
    )

    assert raised == Raised(
        type="ValueError", message="bad sample", frames=("train.py:9 <module>", "train.py:4 main"), causes=()
    )


def test_tracebacks_of_two_ranks_that_interleave_are_told_apart(tmp_path: Path) -> None:
    first = out.traceback("ValueError: one", ("a.py", 1, "one"), rank=0)
    second = out.traceback("KeyError: 'two'", ("b.py", 2, "two"), rank=1)
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]

    raised = {said.line.rank: said.what for said in transcript(tmp_path, *mixed).said}

    assert isinstance(raised[0], Raised)
    assert isinstance(raised[1], Raised)
    assert (raised[0].type, raised[0].frames) == ("ValueError", ("a.py:1 one",))
    assert (raised[1].type, raised[1].frames) == ("KeyError", ("b.py:2 two",))


def test_an_error_that_a_later_one_hides_is_told_too(tmp_path: Path) -> None:
    said = transcript(
        tmp_path,
        *out.traceback("ValueError: bad sample", ("train.py", 4, "main")),
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *out.failed_call("barrier", out.gloo_timeout(), ("train.py", 9, "main")),
    ).said

    assert [(each.what.type, each.role) for each in said if isinstance(each.what, Raised)] == [
        ("ValueError", Role.INITIATING),
        ("RuntimeError", Role.CASCADE),
    ]


@pytest.mark.parametrize(
    ("error", "role"),
    [
        ("ValueError: bad sample", Role.INITIATING),
        (out.out_of_memory(), Role.INITIATING),
        (out.gloo_timeout(), Role.CASCADE),
        (out.gloo_closed(), Role.CASCADE),
        ("torch.distributed.DistBackendError: NCCL error: remote process exited", Role.CASCADE),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15", Role.TEARDOWN),
        ("KeyboardInterrupt", Role.TEARDOWN),
    ],
)
def test_exceptions_are_a_ranks_own_or_what_others_did_to_it(error: str, role: Role, tmp_path: Path) -> None:
    (said,) = [
        each
        for each in transcript(tmp_path, *out.traceback(error, ("a.py", 1, "f"))).said
        if isinstance(each.what, Raised) and each.what.frames
    ]

    assert said.role is role


def test_an_exception_in_a_spawned_process_is_said_by_its_rank(tmp_path: Path) -> None:
    said = whats(
        tmp_path, "-- Process 1 terminated with the following error:", *out.traceback("ValueError: x", ("a.py", 1, "f"))
    )

    assert said[0] == Speaker(rank=1)


def test_a_termination_of_gloo_is_read(tmp_path: Path) -> None:
    (raised,) = whats(
        tmp_path,
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 12 vs 8. Received data size …",
    )

    assert isinstance(raised, Raised)
    assert raised.fatal
    assert raised.type == "gloo::EnforceNotMet"
    assert "12 vs 8" in raised.message


def test_the_failure_block_of_torchrun_names_the_first(tmp_path: Path) -> None:
    said = [
        each for each in whats(tmp_path, *out.failure_block((0, -15), (1, 1), first=(2, -9))) if isinstance(each, Ended)
    ]

    assert [(each.rank, each.code, each.first, each.pid) for each in said] == [
        (0, -15, False, 4000),
        (1, 1, False, 4001),
        (2, -9, True, 4002),
    ]
    assert all(each.stamp is not None for each in said)


def test_a_traceback_inside_the_failure_block_is_said_by_its_rank(tmp_path: Path) -> None:
    block = out.failure_block(first=(2, 1))
    copied = [
        *block[:-2],
        "  traceback : Traceback (most recent call last):",
        '    File "/workspace/train.py", line 4, in main',
        "      boom()",
        "  ValueError: bad sample",
        "  ",
    ]

    said = whats(tmp_path, *copied)

    assert Speaker(rank=2) in said
    assert any(isinstance(each, Raised) and each.type == "ValueError" for each in said)


def test_other_launchers_are_understood(tmp_path: Path) -> None:
    said = whats(
        tmp_path,
        "E0823 22:22:51.8 139 torch/x/api.py:833] failed (exitcode: -9) local_rank: 1 (pid: 77) of binary: python",
        "W0823 22:22:51.8 139 torch/x/api.py:900] Sending process 78 closing signal SIGTERM",
        "srun: error: node-3: tasks 4-5: Segmentation fault",
        "srun: error: node-3: task 6: Exited with exit code 3",
        "mpirun noticed that process rank 2 with PID 0 on node a exited on signal 9 (Killed).",
        "[1] Out of memory: Killed process 99 (python) total-vm:1kB",
        "Worker group FAILED. 2/3 attempts left; will restart worker group",
    )

    assert Ended(code=-9, local_rank=1, pid=77) in said
    assert Torn(pid=78) in said
    assert {Ended(code=-11, task=4), Ended(code=-11, task=5), Ended(code=3, task=6)} <= set(said)
    assert Ended(code=-9, rank=2, first=True) in said
    assert Ended(code=-9, pid=99) in said
    assert Restarted() in said


def test_nccls_own_lines_count_in_hexadecimal(tmp_path: Path) -> None:
    made, issued = whats(
        tmp_path,
        out.nccl_made("gpu1:77", 2, "0x55", 2, 4),
        out.nccl_call("gpu1:77", 2, "AllReduce", 1024, opcount=0x28C, comm="0x55", size=4, dtype=9),
    )

    assert isinstance(made, CommunicatorRank)
    assert (made.rank, made.size, made.identity) == (2, 4, "0x6f3c3a")
    assert isinstance(issued, Issued)
    assert (issued.op, issued.seq, issued.dtype, issued.shapes) == ("all_reduce", 0x28C + 1, "bfloat16", ((1024,),))


def test_a_fatal_signal_is_read_with_the_stacks_below_it(tmp_path: Path) -> None:
    (stacked,) = whats(
        tmp_path,
        "Fatal Python error: Segmentation fault",
        "",
        "Thread 0x00007f6 (most recent call first):",
        '  File "threading.py", line 9 in wait',
        "",
        "Current thread 0x00007f5 (most recent call first):",
        '  File "/workspace/kernels.py", line 44 in fused',
        '  File "/workspace/train.py", line 12 in <module>',
    )

    assert isinstance(stacked, Stacked)
    assert stacked.signal == "SIGSEGV"
    assert stacked.threads[-1].thread == "MainThread"
    assert stacked.threads[-1].frames == ["/workspace/train.py:12 <module>", "/workspace/kernels.py:44 fused"]


@pytest.mark.parametrize("width", [60, 80, 100, 132])
def test_a_line_that_a_terminal_wrapped_is_read_as_if_it_were_whole(width: int, tmp_path: Path) -> None:
    whole = out.old_watchdog(1, seq=9)
    wrapped = [whole[start : start + width] for start in range(0, len(whole), width)]

    (waited,) = whats(tmp_path, *wrapped, "next line")

    assert isinstance(waited, Waited)
    assert (waited.seq, waited.lasted_ms) == (9, 1_808_499)


def test_a_line_that_was_wrapped_at_words_is_read_too(tmp_path: Path) -> None:
    head, tail = out.old_watchdog(1).split(" ran for ")

    (waited,) = whats(tmp_path, head + " ran", "for " + tail)

    assert isinstance(waited, Waited)
    assert waited.lasted_ms == 1_808_499


def test_a_line_that_broke_off_for_good_leaves_the_next_one_alone(tmp_path: Path) -> None:
    said = whats(tmp_path, out.old_watchdog(1)[:100], out.old_watchdog(2))

    assert [each.group_rank for each in said if isinstance(each, Waited)] == [2]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared lines are not here")
@pytest.mark.parametrize("number", range(1, 6))
def test_real_output_of_gloo_programs_is_understood(number: int) -> None:
    (file,) = SHARED.glob(f"local_0{number}_*.log")

    said = transcribe(file, 0).said

    assert {each.line.rank for each in said} <= {0, 1, 2}
    assert any(isinstance(each.what, Raised) for each in said)
