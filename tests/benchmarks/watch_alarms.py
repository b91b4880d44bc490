"""How soon ``distdiag watch`` names the rank that makes a job stall, and whether it stays silent beside healthy ones.

    python tests/benchmarks/watch_alarms.py [--runs 1] [--cases data_loader_stuck,both_send] [--healthy 2] [--slow 1]

Needs ../shared/faults. Collectives time out after ten minutes, the stall limit is five seconds. An alarm counts from
the last sign of progress that any rank left in its log.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from distdiag import events
from distdiag.journal import read_lines, segments_of

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "faults"
STALL_SECONDS = 5.0
CAP_SECONDS = 120.0
"""Given to a program and to who watches it; starting torch on a busy machine takes the most of it."""
ALLOWED_SECONDS = 15.0
SLOW_SECONDS = 30.0
STUCK = (
    "data_loader_stuck",
    "rank_zero_extra",
    "both_send",
    "group_order",
    "pipeline_exchange",
    "new_group_lists",
    "uneven_batches",
    "silent_mispairing",
    "metric_keys",
    "op_mismatch",
    "local_skip",
    "generation_length",
)
FATAL = "stall,death,divergence"
TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
import distdiag
distdiag.install()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)

def slow_backend(graph, inputs):
    time.sleep(8)
    return graph.forward

model = torch.nn.Linear(64, 64)
network = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
mode, seconds = sys.argv[1], float(sys.argv[2])
own = 0.13 if mode == "slow" and rank == 1 else 0.1
compiled = torch.compile(model, backend=slow_backend)
until = time.monotonic() + seconds
step = 0
going = torch.ones(1)
while going.item():
    time.sleep(own)
    optimizer.zero_grad()
    loss = network(torch.randn(4, 64)).pow(2).sum()
    loss.backward()
    optimizer.step()
    distdiag.step(loss=loss.item(), tokens=256)
    step += 1
    if mode == "healthy" and step == 10:
        compiled(torch.randn(4, 64))
    if mode == "healthy" and step == 20:
        with distdiag.phase("evaluate"):
            time.sleep(8)
    if mode == "healthy" and step == 30 and rank == 0:
        with distdiag.phase("save checkpoint"):
            time.sleep(7)
    going.fill_(float(time.monotonic() < until))
    dist.broadcast(going, 0)
dist.destroy_process_group()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What watching a program gave."""

    alarms: tuple[Mapping[str, Any], ...]
    """Each as it was first told, then the last one with its verdict."""
    code: int | None
    began: float | None
    """Wall time at which the first step began, in seconds."""
    stalled: float | None
    """Wall time of the last progress, in seconds."""
    states: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--cases", default=",".join(STUCK))
    parser.add_argument("--healthy", type=int, default=1)
    parser.add_argument("--slow", type=int, default=1)
    args = parser.parse_args()
    expected = json.loads((SHARED / "expected.json").read_text())
    good = total = 0
    for case in [case for case in args.cases.split(",") if case]:
        for _ in range(args.runs):
            total += 1
            good += _stuck(case, expected[case])
    tell(f"stuck: {good} of {total} named within {ALLOWED_SECONDS:.0f} s")
    silent = sum(_healthy() for _ in range(args.healthy))
    tell(f"healthy: {silent} of {args.healthy} without an alarm")
    named = sum(_slow() for _ in range(args.slow))
    tell(f"1.3 times slower: {named} of {args.slow} named within {SLOW_SECONDS:.0f} s")


def tell(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _stuck(case: str, wanted: Mapping[str, Any]) -> bool:
    command = [str(SHARED / "worker.py"), case]
    watched = watch(command, wanted["nproc"], exit_on=FATAL)
    if not watched.alarms:
        tell(f"{case:24} no alarm, code {watched.code}")
        return False
    first, last = watched.alarms[0], watched.alarms[-1]
    verdict = last["verdict"] or {}
    took = first["raised"] - (watched.stalled or first["raised"])
    culprits = wanted.get("culprits")
    right = verdict.get("name") in wanted["verdict"] and (culprits is None or verdict.get("culprits") == culprits)
    named = culprits is None or not first["ranks"] or first["ranks"] == culprits
    tell(
        f"{case:24} {first['kind']} after {took:5.1f} s, at once named {first['ranks']}, "
        f"verdict {verdict.get('name')} {verdict.get('culprits')}{'' if right and named else '  WRONG'}"
    )
    return 0.0 <= took <= ALLOWED_SECONDS and right and named


def _healthy() -> bool:
    watched = watch(_own("healthy", 45), 3, exit_on="")
    for alarm in watched.alarms:
        tell(f"healthy: false alarm {alarm['kind']}: {alarm['summary']}")
    if watched.code is None:
        tell(f"healthy: cut off after {CAP_SECONDS:.0f} s")
    return not watched.alarms


def _slow() -> bool:
    watched = watch(_own("slow", 60), 3, exit_on="straggler")
    if not watched.alarms:
        tell("slow: no alarm")
        return False
    first = watched.alarms[0]
    took = first["raised"] - (watched.began or 0.0)
    tell(f"slow: {first['kind']} {first['ranks']} after {took:.1f} s: {first['summary']}")
    return bool(first["kind"] == "straggler" and first["ranks"] == [1] and took <= SLOW_SECONDS)


def _own(mode: str, seconds: float) -> list[str]:
    return ["-c", TRAIN, mode, str(seconds)]


def watch(command: Sequence[str], ranks: int, *, exit_on: str) -> Watched:
    """Start a program on some ranks, watch it until an alarm ends that or the job is over, and kill what is left."""
    with TemporaryDirectory() as directory:
        logs = Path(directory) / "logs"
        processes = _start(command, ranks, logs)
        watcher = [sys.executable, "-m", "distdiag", "watch", str(logs), "--format", "json"]
        watcher += ["--exit-on", exit_on] if exit_on else []
        try:
            done = subprocess.run(watcher, stdout=subprocess.PIPE, timeout=CAP_SECONDS, check=False)
            output, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as expired:
            output, code = expired.stdout or b"", None
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = [json.loads(line) for line in output.splitlines() if line.endswith(b"}")]
        alarms = tuple(line["alarm"] for line in lines if line["event"] in ("raised", "exit"))
        states = sum(line["event"] == "state" for line in lines)
        moments = _moments(logs)
        steps = [start for kind, start in moments if kind == "step"]
        return Watched(
            alarms=alarms,
            code=code,
            began=min(steps, default=None),
            stalled=max((moment for _, moment in moments), default=None),
            states=states,
        )


def _start(command: Sequence[str], ranks: int, logs: Path) -> list[subprocess.Popen[bytes]]:
    from tests.ranks import free_port, launcher_variables

    port = free_port()
    settings = {
        "DISTDIAG_DIR": str(logs),
        "DISTDIAG_STALL_AFTER": str(STALL_SECONDS),
        "PG_TIMEOUT": "600",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": str(ROOT),
    }
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **settings, **launcher_variables(rank, ranks, port)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for rank in range(ranks)
    ]


def _moments(logs: Path) -> list[tuple[str, float]]:
    """Return the wall times of all signs of progress: of a step its begin, of what ended a step its end."""
    moments: list[tuple[str, float]] = []
    for log in segments_of(logs) if logs.is_dir() else []:
        offset = 0
        for record in (events.decode(line) for file in log.files for line in read_lines(file)):
            if isinstance(record, events.Header):
                offset = record.wall_ns - record.monotonic_ns
            moments += [(kind, (moment + offset) / 1e9) for kind, moment in _told(record)]
    return moments


def _told(record: events.Event) -> list[tuple[str, int]]:
    match record:
        case events.Call(start_ns=moment) | events.Phase(time_ns=moment) | events.Batch(time_ns=moment):
            return [("", moment)]
        case events.Step(start_ns=int(start), end_ns=int(end)):
            return [("step", start), ("", end)]
    return []


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    began = time.monotonic()
    main()
    tell(f"{time.monotonic() - began:.0f} s")
