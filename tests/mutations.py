"""Damaged training output: lines that are cut, glued, doubled, shuffled and filled with what does not belong there."""

import random
from collections.abc import Callable, Iterator, Sequence

from tests import training_output as out

PREFIXES = ("> ", "[default7]:", "3: ", "(Worker pid=7) ", "\x1b[31m", "[rank999999]: ", "host-1: ", "[", "\t")
HUGE = "9" * 40
"""A number that no counter holds."""

Mutation = Callable[[random.Random, list[str]], list[str]]


def corpus() -> list[str]:
    """Return lines of every kind that the text importer understands."""
    user = (("/workspace/train.py", 88, "train_step"), ("/workspace/train.py", 210, "main"))
    return out.text(
        "Running tokenizer on dataset:   9%|▉ | 90000/1000000 [29:55<5:02:34]" + out.watchdog(1, 2),
        out.old_watchdog(2, seq=9),
        out.watchdog(3, 81, "_ALLGATHER_BASE", numel=513, output=1026, group="PG ID 4 PG GUID 17(mesh)"),
        out.status(0, 7, 9, 6),
        out.dump_signal(4, 79209, 79196),
        out.consequences(1),
        out.glog(0, "Stack trace of the failed collective: "),
        "#0 all_reduce from /opt/venv/torch/distributed/distributed_c10d.py:2450",
        out.glog(5, "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"),
        out.failed_call(
            "all_reduce",
            out.mismatch(0, out.fingerprint("BARRIER", None, 21), 1, out.fingerprint("ALLREDUCE", [4, 8], 21)),
            *user,
            rank=0,
        ),
        "[Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 5000 ms",
        "[7] is setting up NCCL communicator and retrieving ncclUniqueId from [0] by key '0': wait timeout after "
        "600000ms",
        "Timed out after 7 seconds waiting for clients. 2/3 clients joined.",
        "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 "
        "(world_size=4, worker_count=8, timeout=0:30:00)",
        out.failed_call("barrier", out.gloo_timeout(), *user, rank=1),
        out.traceback(out.out_of_memory(2), *user),
        "During handling of the above exception, another exception occurred:",
        "",
        out.traceback("ValueError: bad sample", *user, prefix="2: "),
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 12 vs 8. Received data size "
        "doesn't match expected size.",
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f5 (most recent call first):",
        '  File "/workspace/kernels.py", line 44 in fused',
        out.failure_block((0, -15), (1, 1), first=(2, -9)),
        "E0823 22:22:51.8 139 torch/x/api.py:833] failed (exitcode: -9) local_rank: 1 (pid: 77) of binary: python",
        "W0823 22:22:51.8 139 torch/x/api.py:900] Sending process 78 closing signal SIGTERM",
        "srun: error: node-3: tasks 4-5: Segmentation fault",
        "Worker group FAILED. 2/3 attempts left; will restart worker group",
        out.nccl_made("gpu1:77", 2, "0x55", 2, 4),
        out.nccl_call("gpu1:77", 2, "AllReduce", 1024, opcount=0x28C, comm="0x55", size=4),
        "node:1:2 [0] NCCL WARN NET/IB : Got async event : port error",
        "[1,0]<stderr>:[2020-05-11: W stall_inspector.cc:105] One or more tensors were submitted to be reduced, "
        "gathered or "
        "broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.",
        "[1,0]<stderr>:Stalled ranks:",
        "[1,0]<stderr>:4: [grad_1, grad_2]",
        "  7 ranks have launched up to operation 6650",
        "  Rank 4 has launched up to operation 6649",
    ).splitlines()


def damaged(seed: int) -> bytes:
    """Return output that was damaged in a few ways; the same seed gives the same bytes."""
    chance = random.Random(seed)
    lines = corpus()
    start = chance.randrange(len(lines))
    lines = lines[start : start + chance.randrange(1, len(lines))]
    for mutation in chance.choices(MUTATIONS, k=chance.randrange(1, 6)):
        lines = mutation(chance, lines)
    data = "\n".join(lines).encode(errors="replace")
    if chance.random() < 0.2:
        position = chance.randrange(len(data) + 1)
        data = data[:position] + chance.randbytes(chance.randrange(64)) + data[position:]
    return data


def _cut(chance: random.Random, lines: list[str]) -> list[str]:
    return [line[: chance.randrange(len(line) + 1)] if chance.random() < 0.3 else line for line in lines]


def _glue(chance: random.Random, lines: list[str]) -> list[str]:
    joined = chance.choice(("", "\r", " ", "\x1b[0m"))
    return [joined.join(lines[n : n + 2]) for n in range(0, len(lines), 2)]


def _shuffle(chance: random.Random, lines: list[str]) -> list[str]:
    return chance.sample(lines, len(lines))


def _double(chance: random.Random, lines: list[str]) -> list[str]:
    return [line for line in lines for _ in range(chance.choice((1, 1, 1, 3)))]


def _numbers(chance: random.Random, lines: list[str]) -> list[str]:
    return ["".join(_number(chance) if c.isdigit() and chance.random() < 0.2 else c for c in line) for line in lines]


def _number(chance: random.Random) -> str:
    return chance.choice(("", "-1", HUGE, "0", "x", "٣", "1e9"))


def _prefix(chance: random.Random, lines: list[str]) -> list[str]:
    before = chance.choice(PREFIXES)
    return [before + line for line in lines]


def _letters(chance: random.Random, lines: list[str]) -> list[str]:
    return ["".join(chr(chance.randrange(1, 0x2FF)) if chance.random() < 0.02 else c for c in line) for line in lines]


def _brackets(chance: random.Random, lines: list[str]) -> list[str]:
    return [line.replace(chance.choice("()[]:=,"), chance.choice(("", "((", "]]", "::", "\0"))) for line in lines]


MUTATIONS: Sequence[Mutation] = (_cut, _glue, _shuffle, _double, _numbers, _prefix, _letters, _brackets)


def many(count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield so many damaged outputs."""
    return (damaged(seed + number) for number in range(count))
