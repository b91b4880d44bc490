"""How long a verdict takes on large stuck jobs: ``python -m tests.benchmarks.hang_verdict [CASE …]``.

Jobs of any shape are generated with one rank that stops, written as logs of our own or as flight-recorder dumps, and
analysed by the command line in a process of its own, imports and all. Dumps are given to PyTorch's own analyzer as
well, in turns with ours. Generating takes much longer than analysing; ``--keep DIR`` keeps what was generated.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.generated import Format, write_dumps, write_logs
from tests.generator import Fault, Job, Shape, Simulated, simulate

PREFIX = "nccl_trace_rank_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job to analyse, and what it may cost."""

    title: str
    shape: Shape
    steps: int
    layers: int
    write: Callable[[Simulated, Path], Path]
    seconds: float
    megabytes: int
    upstream: bool = False
    """Whether PyTorch's analyzer reads it, too. It gives up early on jobs with messages between ranks, which it takes
    for collectives that ranks are missing from, so it gets one without."""


def _dumps(run: Simulated, directory: Path) -> Path:
    return write_dumps(run, directory, Format(ring=500, prefix=PREFIX))


CASES = {
    "logs": Case(
        title="1,024 ranks x 1,000 calls, own logs",
        shape=Shape(tensor=8, pipeline=8, data=16, expert=16),
        steps=27,
        layers=4,
        write=write_logs,
        seconds=5,
        megabytes=1024,
    ),
    "many": Case(
        title="16,384 ranks x 100 calls, own logs",
        shape=Shape(tensor=8, pipeline=16, data=128, expert=64),
        steps=5,
        layers=2,
        write=write_logs,
        seconds=60,
        megabytes=2048,
    ),
    "short": Case(
        title="128 ranks x 1,500 calls",
        shape=Shape(tensor=4, data=32, expert=8),
        steps=84,
        layers=2,
        write=write_logs,
        seconds=60,
        megabytes=2048,
    ),
    "long": Case(
        title="the same with 20 times the history",
        shape=Shape(tensor=4, data=32, expert=8),
        steps=1680,
        layers=2,
        write=write_logs,
        seconds=60,
        megabytes=2048,
    ),
    "dumps": Case(
        title="256 dumps x 500 entries",
        shape=Shape(data=256),
        steps=250,
        layers=1,
        write=_dumps,
        seconds=60,
        megabytes=1024,
        upstream=True,
    ),
}
USUAL = ("logs", "dumps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a process took."""

    seconds: float
    cpu_seconds: float
    megabytes: float
    code: int


def measured(command: Sequence[str]) -> Cost:
    """Run a command and return what it took; its byte code is kept, as that of whatever is installed is."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(
        seconds=time.perf_counter() - start,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        megabytes=usage.ru_maxrss / 1024,
        code=process.returncode,
    )


def generated(case: Case, directory: Path) -> tuple[int, int]:
    """Write the job of a case unless it is there; return the guilty rank and the number of calls of a rank."""
    culprit = case.shape.world_size * 2 // 3
    group = "tensor" if case.shape.tensor > 1 else "data"
    fault = Fault(kind="host", rank=culprit, step=case.steps - 1, group=group)
    run = simulate(Job(shape=case.shape, steps=case.steps, layers=case.layers, fault=fault, skew_ns=1_000_000))
    if not directory.exists():
        case.write(run, directory)
    return culprit, max(run.issued)


def main() -> None:
    """Print a table of what each case took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: {' '.join(USUAL)}")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="directory for the generated jobs")
    options = parser.parse_args()
    if unknown := set(options.cases) - CASES.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    root = options.keep or Path(tempfile.mkdtemp(prefix="distdiag-benchmark-"))
    sys.stdout.write(
        f"{'case':40} {'elapsed':>8} {'cpu':>7} {'memory':>8} {'allowed':>13} {'upstream':>9} {'cpu':>7} {'ratio':>6}\n"
    )
    try:
        for name in options.cases or USUAL:
            _report(CASES[name], root / name, options.runs)
    finally:
        if options.keep is None:
            shutil.rmtree(root, ignore_errors=True)


def _report(case: Case, directory: Path, runs: int) -> None:
    culprit, calls = generated(case, directory)
    out = directory.with_suffix(".json")
    ours, theirs = [], []
    for _ in range(runs):
        ours.append(
            measured(
                [sys.executable, "-m", "distdiag", "analyze", str(directory), "--format", "json", "--output", str(out)]
            )
        )
        if case.upstream:
            upstream = "torch.distributed.flight_recorder.fr_trace"
            theirs.append(measured([sys.executable, "-m", upstream, str(directory), "-p", PREFIX]))
    verdict = json.loads(out.read_text())["verdict"]
    right = verdict["name"] == "rank-missing" and verdict["culprits"] == [culprit]
    seconds = statistics.median(cost.seconds for cost in ours)
    cpu = statistics.median(cost.cpu_seconds for cost in ours)
    memory = max(cost.megabytes for cost in ours)
    allowed = f"{case.seconds:.0f} s {case.megabytes} MB"
    compared = ""
    if theirs:
        upstream_cpu = statistics.median(cost.cpu_seconds for cost in theirs)
        ratio = statistics.median(b.seconds / a.seconds for a, b in zip(ours, theirs, strict=True))
        compared = f"{statistics.median(cost.seconds for cost in theirs):8.2f}s {upstream_cpu:6.2f}s {ratio:5.1f}x"
    sys.stdout.write(
        f"{case.title:40} {seconds:7.2f}s {cpu:6.2f}s {memory:5.0f} MB {allowed:>13} {compared}\n"
        f"{'':4}{verdict['name']} {verdict['culprits']}{'' if right else ' WRONG'} after {calls} calls of a rank\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
