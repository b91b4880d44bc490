"""Training output as torch, NCCL, gloo and launchers print it, line by line, for tests of the text importer."""

from collections.abc import Iterable, Sequence

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
SECOND_MS = 1000


def glog(
    rank: int,
    message: str,
    *,
    file: str = "ProcessGroupNCCL.cpp:607",
    clock: str = "18:40:00.100000001",
    day: str = "1206",
) -> str:
    """Return a line of c10d's logger as new versions print it."""
    return f"[rank{rank}]:[E{day} {clock} {file}] {message}"


def watchdog(
    rank: int,
    seq: int,
    op: str = "ALLREDUCE",
    *,
    numel: int = 1,
    output: int | None = None,
    group: str = "PG ID 0 PG GUID 0(default_pg)",
    group_rank: int | None = None,
    clock: str = "18:40:00.100000001",
    lasted_ms: int = 600_012,
) -> str:
    """Return the line with which a collective gives up."""
    member = rank if group_rank is None else group_rank
    return glog(
        rank,
        f"[{group} Rank {member}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, "
        f"NumelIn={numel}, NumelOut={numel if output is None else output}, Timeout(ms)=600000) ran for {lasted_ms} "
        "milliseconds before timing out.",
        clock=clock,
    )


def old_watchdog(rank: int, op: str = "ALLREDUCE", lasted_ms: int = 1_808_499, seq: int | None = None) -> str:
    """Return the same line as torch 1.13 printed it, with the rank inside the group only."""
    number = "" if seq is None else f"SeqNum={seq}, "
    return (
        f"[E ProcessGroupNCCL.cpp:737] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL({number}OpType={op}, Timeout(ms)=1800000) ran for {lasted_ms} milliseconds before timing out."
    )


def status(rank: int, seq: int, enqueued: int, completed: int, group: str = "PG ID 0 PG GUID 0(default_pg)") -> str:
    """Return the line that says how far a group got."""
    return glog(
        rank,
        f"[{group} Rank {rank}]  failure detected by watchdog at work sequence id: {seq} PG status: "
        f"last enqueued work: {enqueued}, last completed work: {completed}",
        file="ProcessGroupNCCL.cpp:1785",
    )


def dump_signal(rank: int, enqueued: int, completed: int, source: str = " rank 2") -> str:
    """Return the line of a rank that others tell of their time-out."""
    return glog(
        rank,
        f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from {source} "
        "and we will try our best to dump the debug info. "
        f"Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
        "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks.",
        file="ProcessGroupNCCL.cpp:1484",
    )


def consequences(rank: int) -> list[str]:
    """Return what follows a time-out, and says nothing."""
    return [
        glog(rank, "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels …"),
        glog(rank, "To avoid data inconsistency, we are taking the entire process down."),
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in libc10.so)",
    ]


def traceback(
    error: str, *frames: tuple[str, int, str], rank: int | None = None, prefix: str | None = None
) -> list[str]:
    """Return a traceback, prefixed as torch's hook does it where a rank is given."""
    before = prefix if prefix is not None else "" if rank is None else f"[rank{rank}]: "
    lines = ["Traceback (most recent call last):"]
    for file, line, function in frames:
        lines += [f'  File "{file}", line {line}, in {function}', f"    {function}(...)", "    ^^^^^^^^^"]
    return [before + line for line in [*lines, *error.split("\n")]]


def failed_call(op: str, error: str, *user: tuple[str, int, str], rank: int | None = None) -> list[str]:
    """Return the traceback of a collective of ``torch.distributed`` that failed."""
    c10d = f"{TORCH}/distributed/distributed_c10d.py"
    wrapper = (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper")
    return traceback(error, *user, wrapper, (c10d, 3252, op), rank=rank)


def gloo_timeout(direction: str = "recv", limit_ms: int = 6000) -> str:
    """Return the message of a gloo operation that gave up."""
    return (
        "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
        f"Timed out waiting {limit_ms}ms for {direction} operation to complete"
    )


def gloo_closed() -> str:
    """Return the message of a gloo operation whose peer went away."""
    return (
        "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
        "Connection closed by peer [10.0.0.2]:29839"
    )


def out_of_memory(device: int = 0) -> str:
    """Return the message of CUDA's allocator."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.86 GiB. GPU {device} has a total "
        f"capacity of "
        "79.15 GiB of which 15.31 GiB is free. Process 4711 has 63.84 GiB memory in use. Of the allocated memory "
        "47.10 GiB "
        "is allocated by PyTorch, and 15.53 GiB is reserved by PyTorch but unallocated."
    )


def fingerprint(op: str, shape: Sequence[int] | None, seq: int | None = 0, dtype: str = "Float") -> str:
    """Return what the checks of ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` print of a collective."""
    number = "" if seq is None else f"SequenceNumber={seq}"
    if shape is None:
        return f"CollectiveFingerPrint({number}OpType={op})"  # they leave a comma out here
    sizes = ", ".join(map(str, shape))
    return (
        f"CollectiveFingerPrint({number}, OpType={op}, TensorShape=[{sizes}], TensorDtypes={dtype}, "
        "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, layout=Strided (default)))"
    )


def mismatch(rank: int, mine: str, other: int, theirs: str) -> str:
    """Return the error of two ranks whose fingerprints differ."""
    return (
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: {mine}, "
        f"but Rank {other} is running collective: {theirs}.Collectives differ in the following aspects: \tOp type: …"
    )


def failure_block(
    *ended: tuple[int, int], first: tuple[int, int], local: int | None = None, moment: str = "2025-12-06_18:30:00"
) -> list[str]:
    """Return the summary of torchrun: (rank, exit code) of the failures, and of the first one."""

    def entry(number: int, rank: int, code: int) -> list[str]:
        what = (
            f"Signal {-code} (SIG…) received by PID {4000 + rank}" if code < 0 else "To enable traceback see: https://…"
        )
        return [
            f"[{number}]:",
            f"  time      : {moment}",
            "  host      : node-1",
            f"  rank      : {rank} (local_rank: {rank if local is None else local})",
            f"  exitcode  : {code} (pid: {4000 + rank})",
            "  error_file: <N/A>",
            f"  traceback : {what}",
        ]

    lines = ["=" * 60, "train.py FAILED", "-" * 60, "Failures:"]
    for number, (rank, code) in enumerate(ended, start=1):
        lines += entry(number, rank, code)
    if not ended:
        lines.append("  <NO_OTHER_FAILURES>")
    return [*lines, "-" * 60, "Root Cause (first observed failure):", *entry(0, *first), "=" * 60]


def nccl_call(
    process: str, device: int, op: str, count: int, *, opcount: int, comm: str, size: int, dtype: int = 7, root: int = 0
) -> str:
    """Return a line of ``NCCL_DEBUG_SUBSYS=COLL``; its operation count is hexadecimal."""
    return (
        f"{process}:4{device} [{device}] NCCL INFO {op}: opCount {opcount:x} sendbuff 0x7f55 recvbuff 0x7f56 count "
        f"{count} "
        f"datatype {dtype} op 0 root {root} comm {comm} [nranks={size}] stream 0x55d1"
    )


def nccl_made(process: str, device: int, comm: str, rank: int, size: int) -> str:
    """Return the line of a communicator that is ready."""
    return (
        f"{process}:4{device} [{device}] NCCL INFO comm {comm} rank {rank} nranks {size} cudaDev {device} busId "
        f"{device}000 "
        "commId 0x6f3c3a - Init COMPLETE"
    )


def text(*parts: str | Iterable[str]) -> str:
    """Return the lines of all parts as one text."""
    lines = [line for part in parts for line in ([part] if isinstance(part, str) else part)]
    return "\n".join(lines) + "\n"
