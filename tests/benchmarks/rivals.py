"""distdiag beside what else there is: ``python -m tests.benchmarks.rivals [--write] [--hta PYTHON]``.

Measures side by side, in turns and in one run: what recording adds to a collective, beside CommDebugMode,
torch.profiler and the DETAIL mode of torch.distributed; how long 256 dumps take, beside torchfrtrace; how long a trace
of the profiler takes, beside Holistic Trace Analysis. ``--hta`` names a Python that has it (it needs much that
distdiag does not). ``--write`` keeps the figures in ``rivals.json`` and puts them into the README and the page on
cost.
"""

import argparse
import functools
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tests.benchmarks import profiler_traces
from tests.benchmarks.hang_verdict import CASES, PREFIX, generated, measured

ROOT = Path(__file__).parents[2]
FIGURES = Path(__file__).with_name("rivals.json")
README = ROOT / "README.md"
PAGE = ROOT / "distdiag" / "docs" / "cost.md"
TABLE = re.compile(r"(\| measured side by side[^|\n]*\| distdiag \| others \|\n\|---\|---\|---\|\n)(?:\|.*\n)*")
CALLS = 500
WARM_UP_CALLS = 100
MODES = ("bare", "recorded", "DETAIL")
TRACE_MEGABYTES = 150
UPSTREAM = "torch.distributed.flight_recorder.fr_trace"
HTA = (
    "import sys; from hta.trace_analysis import TraceAnalysis; "
    "traces = TraceAnalysis(trace_dir=sys.argv[1]); "
    "traces.get_temporal_breakdown(visualize=False); traces.get_comm_comp_overlap(visualize=False)"
)
"""What of its analyses ours answers too: idle, computing and communicating time, and their overlap."""

Figures = Mapping[str, float | None]


# ---- a collective that does nothing -----------------------------------------------------------------------------
def fake_calls(blocks: int) -> dict[str, float]:
    """Return the median microseconds of one all_reduce on a backend that does nothing, under each watcher."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from tests.benchmarks import overhead_per_call as per_call

    torch.set_num_threads(1)
    os.environ["RANK"] = "0"
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    with tempfile.TemporaryDirectory(prefix="distdiag-rivals-") as name:
        watchers: dict[str, Callable[[], AbstractContextManager[object]]] = {
            "bare": nullcontext,
            "recorded": functools.partial(per_call.recorded, Path(name)),
            "CommDebugMode": CommDebugMode,
            "torch.profiler": functools.partial(per_call.profiled, stacks=False),
            "torch.profiler with stacks": functools.partial(per_call.profiled, stacks=True),
        }
        costs = per_call.measure(watchers, blocks)
    dist.destroy_process_group()
    return {name: cost.elapsed for name, cost in costs.items()}


# ---- a collective of two processes ------------------------------------------------------------------------------
def gloo_calls(blocks: int) -> dict[str, float]:
    """Return the median microseconds of one all_reduce between two processes, by mode; modes take turns."""
    took: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(blocks):
        for mode in MODES:
            took[mode].append(_gloo_block(mode))
    return {mode: statistics.median(each) for mode, each in took.items()}


def _gloo_block(mode: str) -> float:
    """Return what one all_reduce took in two processes of their own, as the slower one saw it."""
    with socket.socket() as probe, tempfile.TemporaryDirectory(prefix="distdiag-rivals-") as logs:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        common |= {"GLOO_SOCKET_IFNAME": "lo", "DISTDIAG_DIR": logs}
        common |= {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if mode == "DETAIL" else {}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.benchmarks.rivals", "--block", mode],
                env={**os.environ, **common, "RANK": str(rank)},
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(2)
        ]
        return max(float(process.communicate(timeout=120)[0]) for process in processes)


def _block(mode: str) -> float:
    """Run one block in this process; return microseconds per call."""
    import torch
    import torch.distributed as dist

    import distdiag

    torch.set_num_threads(1)
    if mode == "recorded":
        distdiag.install()
    dist.init_process_group("gloo")
    tensor = torch.ones(4)
    begun = 0.0
    for number in range(-WARM_UP_CALLS, CALLS):
        if number == 0:
            begun = time.perf_counter()
        dist.all_reduce(tensor)
    took = time.perf_counter() - begun
    dist.destroy_process_group()
    return took / CALLS * 1e6


# ---- reading ----------------------------------------------------------------------------------------------------
def dumps_read(runs: int) -> dict[str, float]:
    """Return the median seconds of a verdict on 256 dumps of 500 entries, ours and upstream's in turns."""
    with tempfile.TemporaryDirectory(prefix="distdiag-rivals-") as name:
        directory = Path(name) / "dumps"
        generated(CASES["dumps"], directory)
        out = Path(name) / "report.json"
        ours = [sys.executable, "-m", "distdiag", "analyze", str(directory), "--format", "json", "--output", str(out)]
        return _in_turns({"ours": ours, "theirs": [sys.executable, "-m", UPSTREAM, str(directory), "-p", PREFIX]}, runs)


def trace_read(runs: int, hta: str | None) -> dict[str, float]:
    """Return the median seconds of reading one profiler trace, with HTA in turns where a Python has it."""
    with tempfile.TemporaryDirectory(prefix="distdiag-rivals-") as name:
        trace = Path(name) / "traces" / "trace_rank-0.json"
        trace.parent.mkdir()
        profiler_traces.write(trace, TRACE_MEGABYTES * 1_000_000 // profiler_traces.EVENT_BYTES)
        out = Path(name) / "report.json"
        ours = [sys.executable, "-m", "distdiag", "analyze", str(trace.parent), "--format", "json"]
        commands = {"ours": [*ours, "--output", str(out)]}
        if hta is not None:
            commands["theirs"] = [hta, "-c", HTA, str(trace.parent)]
        return _in_turns(commands, runs)


def _in_turns(commands: Mapping[str, Sequence[str]], runs: int) -> dict[str, float]:
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            cost = measured(command)
            if cost.code not in (0, 1):  # 1 is a verdict
                raise SystemExit(f"{' '.join(command)} ended with {cost.code}")
            took[name].append(cost.seconds)
    return {name: statistics.median(each) for name, each in took.items()}


# ---- figures and texts ------------------------------------------------------------------------------------------
def figures(blocks: int, runs: int, hta: str | None) -> dict[str, float | None]:
    """Measure everything; None stands for what is not installed."""
    fake, gloo = fake_calls(blocks), gloo_calls(blocks)
    dumps, trace = dumps_read(runs), trace_read(runs, hta)
    return {
        **{f"fake {name} us": round(value, 1) for name, value in fake.items()},
        **{f"gloo {name} us": round(value, 1) for name, value in gloo.items()},
        **{f"dumps {name} s": round(value, 2) for name, value in dumps.items()},
        "trace ours s": round(trace["ours"], 2),
        "trace theirs s": round(trace["theirs"], 2) if "theirs" in trace else None,
    }


def rows(found: Figures) -> str:
    """Return the rows of the README's table."""

    def told(name: str, unit: str) -> str:
        value = found.get(f"{name} {unit}")
        return "not measured" if value is None else f"{value:,.4g} {unit}"

    def added(name: str) -> str:
        value, bare = found.get(f"fake {name} us"), found.get("fake bare us")
        return "not measured" if value is None or bare is None else f"{value - bare:.1f} us"

    def times(name: str) -> str:
        value, bare = found.get(f"gloo {name} us"), found.get("gloo bare us")
        return "not measured" if value is None or bare is None else f"{value / bare:.2f}x"

    watched = ("CommDebugMode", "torch.profiler", "torch.profiler with stacks")
    table = (
        ("host time added to a collective", added("recorded"), ", ".join(f"{each} {added(each)}" for each in watched)),
        ("all_reduce of 2 gloo processes, to bare", times("recorded"), f"debug mode DETAIL {times('DETAIL')}"),
        ("256 dumps of 500 calls each", told("dumps ours", "s"), f"torchfrtrace {told('dumps theirs', 's')}"),
        (f"{TRACE_MEGABYTES} MB of profiler trace", told("trace ours", "s"), f"HTA {told('trace theirs', 's')}"),
    )
    return "".join(f"| {what} | {ours} | {others} |\n" for what, ours, others in table)


def main() -> None:
    """Measure and print; with ``--write`` keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hta", metavar="PYTHON", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--write", action="store_true", help="keep the figures and write them into the README")
    parser.add_argument("--block", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.block:
        sys.stdout.write(f"{_block(options.block)}\n")
        return
    found = figures(options.blocks, options.runs, options.hta)
    sys.stdout.write(json.dumps(found, indent=1) + "\n" + rows(found))
    if options.write:
        FIGURES.write_text(json.dumps(found, indent=1) + "\n")
        for page in (README, PAGE):
            page.write_text(TABLE.sub(lambda match: match[1] + rows(found), page.read_text(), count=1))


if __name__ == "__main__":
    main()
