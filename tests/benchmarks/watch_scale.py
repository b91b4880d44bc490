"""What watching a large job costs: CPU time and memory of ``distdiag watch`` beside ranks that append to their logs.

    python tests/benchmarks/watch_scale.py [--ranks 1024] [--seconds 30] [--records 20]
    python tests/benchmarks/watch_scale.py --agents --ranks 16384

The logs are written by a process of its own, once a second for each rank: calls with their ends, a step and a pulse;
with ``--agents`` the summaries of hosts of eight ranks, in five groups, are written instead.
The watch runs in a terminal of 80 columns and 24 lines. CPU time is counted, so other work on the machine matters
less; the beginning, in which modules are loaded and all logs are read for the first time, is left out.
"""

import argparse
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from distdiag import events
from distdiag.live.nodes import FOLDER, ROWS, SCHEMA, NodeGroup, NodeSummary, publish
from distdiag.live.slowness import OwnTime
from distdiag.live.snapshot import RankRow

ROOT = Path(__file__).parents[2]
SETTLE_SECONDS = 8.0
RANKS_PER_NODE = 8
SECOND_NS = 1_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--records", type=int, default=20, help="records of a rank in a second")
    parser.add_argument("--agents", action="store_true", help="summaries of agents instead of logs")
    parser.add_argument("--write", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        if args.agents:
            summarise(Path(args.write), args.ranks)
        write(Path(args.write), args.ranks, args.records)
    with TemporaryDirectory() as directory:
        logs = Path(directory)
        writer = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--write", directory])
        try:
            _measure(logs, args)
        finally:
            writer.kill()
            writer.wait()


def _measure(logs: Path, args: argparse.Namespace) -> None:
    files = args.ranks // RANKS_PER_NODE if args.agents else args.ranks
    pattern, options = (f"{FOLDER}/*.json", ["--agents"]) if args.agents else ("*.jsonl", [])
    while len(list(logs.glob(pattern))) < files:
        time.sleep(0.2)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    watcher = subprocess.Popen(
        [sys.executable, "-m", "distdiag", "watch", str(logs), "--no-verdict", *options],
        stdin=theirs,
        stdout=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
    )
    drawn = [0]
    threading.Thread(target=_drain, args=(ours, drawn), daemon=True).start()
    try:
        time.sleep(SETTLE_SECONDS)
        process = psutil.Process(watcher.pid)
        before, began, frames = _cpu(process), time.monotonic(), drawn[0]
        time.sleep(args.seconds)
        wall = time.monotonic() - began
        share, memory = (_cpu(process) - before) / wall, process.memory_info().rss / 2**20
        looks = (drawn[0] - frames) / wall
    finally:
        watcher.kill()
        watcher.wait()
    state = json.loads(
        subprocess.run(
            [sys.executable, "-m", "distdiag", "watch", str(logs), "--once", "--format", "json", *options],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        ).stdout
    )
    sys.stdout.write(
        f"{args.ranks} ranks{' through agents' if args.agents else f' x {args.records} records/s'}: "
        f"{share:.1%} of a core, {memory:.0f} MB, {looks:.2f} screens/s; "
        f"{sum(state['hosts'].values()) or len(state['ranks'])} ranks seen, step {state['step']}, {state['health']}\n"
    )


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _drain(descriptor: int, drawn: list[int]) -> None:
    while data := os.read(descriptor, 1 << 16):
        drawn[0] += data.count(b"distdiag ")


def write(logs: Path, ranks: int, records: int) -> None:
    """Append a second's records of all ranks each second, for ever."""
    pairs = max((records - 2) // 2, 1)
    for rank in range(ranks):
        (logs / f"rank{rank:05d}.jsonl").write_bytes(_beginning(rank, ranks))
    step = 0
    while True:
        began = time.monotonic()
        for rank in range(ranks):
            with (logs / f"rank{rank:05d}.jsonl").open("ab") as file:
                file.write(_second(step, pairs))
        step += 1
        time.sleep(max(1.0 - (time.monotonic() - began), 0.0))


def summarise(logs: Path, ranks: int) -> None:
    """Write what the agents of all hosts say each second, for ever."""
    step = 0
    while True:
        began = time.monotonic()
        for host in range(ranks // RANKS_PER_NODE):
            publish(logs, _summary(host, ranks, step))
        step += 1
        time.sleep(max(1.0 - (time.monotonic() - began), 0.0))


def _summary(host: int, ranks: int, step: int) -> NodeSummary:
    first = host * RANKS_PER_NODE
    own = range(first, first + RANKS_PER_NODE)
    members = [f"0-{ranks - 1}", *(f"{first}-{first + RANKS_PER_NODE - 1}" for _ in range(4))]
    return NodeSummary(
        schema=SCHEMA,
        host=f"node{host}",
        run="job@node0:29500",
        attempt=0,
        wall_ns=time.time_ns(),
        world_size=ranks,
        ranks=f"{own[0]}-{own[-1]}",
        living=RANKS_PER_NODE,
        moving=True,
        still_seconds=0.1,
        limit_seconds=60.0,
        states={"runs": RANKS_PER_NODE},
        step=step,
        steps_per_second=1.0,
        tokens_per_second=32768.0,
        remaining_seconds=None,
        waiting={},
        free=[],
        places=[f"ranks {own[0]}-{own[-1]} are in backward (train.py:88 main)"],
        dead=[],
        own={rank: OwnTime(whole=8e8, first=8e8, second=8e8, step=1e9, steps=20) for rank in own},
        rows=[_row(rank, host, step) for rank in own[:ROWS]],
        groups=[
            NodeGroup(name=f"{n}", label=f"group {n}", members=each, newest=step, seqs=dict.fromkeys(own, step))
            for n, each in enumerate(members)
        ],
        conditions=[],
    )


def _row(rank: int, host: int, step: int) -> RankRow:
    return RankRow(
        rank=rank,
        host=f"node{host}",
        pid=1000 + rank,
        state="runs",
        step=step,
        phase="backward",
        doing="is in backward",
        where="/job/train.py:88 main",
        still_seconds=0.1,
        limit_seconds=60.0,
        pulse_seconds=0.5,
        step_seconds=1.0,
        own_seconds=0.8,
        lateness_seconds=0.01,
        suffered=0.1,
        caused=0.0,
        memory_bytes=2_000_000_000,
        memory_limit_bytes=None,
        steps=step,
        trouble=0.01,
    )


def _beginning(rank: int, ranks: int) -> bytes:
    now = time.monotonic_ns()
    records: list[events.Event] = [
        events.Header(
            schema=events.SCHEMA,
            run="job@node0:29500",
            attempt=0,
            rank=rank,
            world_size=ranks,
            host=f"node{rank // RANKS_PER_NODE}",
            pid=1000 + rank,
            wall_ns=time.time_ns(),
            monotonic_ns=now,
            stall_after_seconds=60.0,
            max_bytes=1 << 28,
        ),
        events.Group(group="0", description="default_pg", ranks=f"0-{ranks - 1}", backend="nccl", time_ns=now),
        events.Path(path=1, frames=["/job/train.py:88 main", "/job/train.py:40 step"]),
        events.Signature(signature=1, group="0", op="all_reduce", shapes=[[4096]], dtype="float32", path=1, agree=1),
    ]
    return b"".join(map(events.encode, records))


def _second(step: int, pairs: int) -> bytes:
    now = time.monotonic_ns()
    lines = []
    for number in range(pairs):
        call = step * pairs + number + 1
        start = now + number * 1000
        lines.append(
            f'{{"kind":"call","call":{call},"signature":1,"seq":{call},"step":{step},"forwards":1,"phase":"backward",'
            f'"start_ns":{start},"chain":{call * 7919 % 2**32},"path_chain":{call}}}\n'
            f'{{"kind":"done","call":{call},"end_ns":{start + 500},"clock":"poll"}}\n'
        )
    sums = f'{{"0/all_reduce":{{"calls":{pairs},"bytes":4096,"duration_ns":500,"wait_ns":200000000}}}}'
    lines.append(
        f'{{"kind":"step","step":{step},"start_ns":{now - SECOND_NS},"end_ns":{now},"data_ns":1,"forward_ns":2,'
        f'"backward_ns":3,"optimizer_ns":4,"forwards":1,"backwards":1,"calls":{step * pairs},"cpu_ns":5,'
        f'"facts":{{"tokens":4096,"loss":2.5}},"rollups":{sums}}}\n'
        f'{{"kind":"pulse","time_ns":{now + 20000},"step":{step + 1},"phase":"forward","path":1,'
        f'"calls":{(step + 1) * pairs},"cpu_ns":9,"rss_bytes":2000000000,"stall_after_seconds":60.0,"still_ns":1000}}\n'
    )
    return "".join(lines).encode()


if __name__ == "__main__":
    main()
