"""What reading a large profiler trace costs: ``python tests/benchmarks/profiler_traces.py [MEGABYTES] [FILE]``.

Writes a trace as Kineto would (500,000 events in 150 MB unless told otherwise), then reads and measures it in a process
of its own: as lines, on one line and packed. Prints the time and the peak of memory beside those of a bare typed
decoding of the same text in one go, which is what the time is to be compared with on a busy machine. ``command`` is
``distdiag analyze`` as a whole.
"""

import json
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

MEGABYTES = 150
EVENT_BYTES = 300
"""What an event takes on average, as in real traces."""
RUNS = 3
GAP_US = 3.1
STEPS = 5

PEAK = """
import sys, time
from pathlib import Path
def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
Path("/proc/self/clear_refs").write_text("5")  # or the peak of the process that forked this one would count
"""
"""Defines what the peak of a process's memory is."""

READ = (
    PEAK
    + """
from distdiag.importers import profiler
before = peak()
start, cpu = time.perf_counter(), time.process_time()
found = profiler.read([Path(sys.argv[1])])
took, used = time.perf_counter() - start, time.process_time() - cpu
row = found.tables.profiles.iloc[0]
print(took, used, peak(), before, row["activities"] + row["in_last_step"], "kernels", found.notes)
"""
)

BARE = (
    PEAK
    + """
import gc, msgspec
from distdiag.importers._traces.decoding import Event
class Document(msgspec.Struct):
    traceEvents: list[Event]
before = peak()
gc.disable()
start, cpu = time.perf_counter(), time.process_time()
events = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Document).traceEvents
took, used = time.perf_counter() - start, time.process_time() - cpu
print(took, used, peak(), before, len(events), "events")
"""
)

COMMAND = (
    PEAK
    + """
sys.argv = ["distdiag", "analyze", sys.argv[1], "--output", "/dev/null"]
from distdiag.cli import main
before = peak()
start, cpu = time.perf_counter(), time.process_time()
try:
    main()
except SystemExit as ended:
    print(time.perf_counter() - start, time.process_time() - cpu, peak(), before, "exit", ended.code or 0)
"""
)


def events(count: int) -> Iterator[str]:
    """Yield events in the proportions of real traces: operators, frames, launches, kernels and the arrows between."""
    for number in range(count):
        at = f"{1712195495505583 + number * GAP_US:.0f}.{number % 1000:03d}"
        yield _event(number % 20, number, at)
        if number % (count // STEPS) == 0:
            yield _text("user_annotation", f"ProfilerStep#{number // (count // STEPS)}", at, {"Ev Idx": number})


def _event(kind: int, number: int, at: str) -> str:
    launch = number // 20 * 4
    if kind < 5:
        return _text("cpu_op", "aten::convolution_overrideable", at, SHAPES | {"External id": number, "Ev Idx": number})
    if kind < 9:
        frame = f"torch/nn/modules/module.py(1553): _call_impl_{number % 500}"
        return _text("python_function", frame, at, {"Python parent id": 12, "Python id": number, "Ev Idx": number})
    if kind < 13:
        launched = {"External id": number, "cbid": 211, "correlation": launch + kind - 9}
        return _text("cuda_runtime", "cudaLaunchKernel", at, launched)
    if kind < 17:
        communicates = kind == 16
        name = ALL_REDUCE if communicates else f"{KERNEL}{number % 200}>(int, std::array<char*, 2ul>)"
        told = {"External id": number, "device": 0, "context": 1, "stream": 20 if communicates else 7}
        return _text("kernel", name, at, told | {"correlation": launch + kind - 13} | OCCUPANCY)
    return (
        f'  {{\n    "ph": "f", "id": {number}, "pid": 0, "tid": 7, "ts": {at},\n'
        '    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }'
    )


SHAPES = {
    "Sequence number": 321,
    "Fwd thread id": 0,
    "Input Dims": [[32, 3, 224, 224], [64, 3, 7, 7], [], [], [], []],
    "Input type": ["c10::BFloat16", "c10::BFloat16", "", "ScalarList"],
    "Input Strides": [[150528, 1, 672, 3], [147, 1, 21, 3], [], [], [], []],
}
OCCUPANCY = {
    "queued": 0,
    "registers per thread": 30,
    "shared memory": 0,
    "grid": [4, 106, 1],
    "block": [128, 1, 1],
    "est. achieved occupancy %": 33,
}
KERNEL = "void at::native::vectorized_elementwise_kernel<8, at::native::AUnaryFunctor<"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _text(cat: str, name: str, at: str, args: Mapping[str, object]) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": 1, "tid": 1,\n'
        f'    "ts": {at}, "dur": {len(name) % 9}.678,\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}\n  }}'
    )


def write(file: Path, count: int) -> None:
    """Write a trace of some events."""
    with file.open("w") as out:
        out.write('\n{\n  "schemaVersion": 1,\n  "deviceProperties": [\n  ],\n')
        out.write('  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},\n  "traceEvents": [\n')
        for position, event in enumerate(events(count)):
            out.write(f",\n{event}" if position else event)
        out.write('\n  ],\n  "traceName": "x.json",\n  "displayTimeUnit": "ms"\n}\n')


def pack(file: Path, target: Path) -> None:
    """Compress a file."""
    packer = zlib.compressobj(1, wbits=31)
    target.write_bytes(packer.compress(file.read_bytes()) + packer.flush())


def measure(what: str, program: str, file: Path) -> None:
    """Print the median time of some runs, and the highest peak."""
    runs = []
    for _ in range(RUNS):
        done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True)
        runs.append(done.stdout.split(maxsplit=4))
    took = sorted(float(run[0]) for run in runs)
    used = sorted(float(run[1]) for run in runs)
    peak, before = (max(float(run[column]) for run in runs) for column in (2, 3))
    sys.stdout.write(
        f"{what:<12} {took[len(took) // 2]:6.2f} s (best {took[0]:.2f}), processor {used[len(used) // 2]:.2f} s   "
        f"peak {peak:5.0f} MiB, {before:.0f} of them before reading   {runs[0][4]}"
    )


def main() -> None:
    """Write, read and print."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else MEGABYTES
    with tempfile.TemporaryDirectory() as name:
        lines = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(name, "trace_rank-0.json")
        if not lines.exists():
            write(lines, megabytes * 1_000_000 // EVENT_BYTES)
        one_line, packed = Path(name, "one_line_rank-0.json"), Path(name, "trace_rank-0.json.gz")
        one_line.write_text(json.dumps(json.loads(lines.read_text())))
        pack(lines, packed)
        sys.stdout.write(f"{lines.stat().st_size / 1e6:.0f} MB, median of {RUNS} runs\n")
        for what, program, file in (
            ("bare", BARE, lines),
            ("lines", READ, lines),
            ("one line", READ, one_line),
            ("packed", READ, packed),
            ("command", COMMAND, lines),
        ):
            measure(what, program, file)


if __name__ == "__main__":
    main()
