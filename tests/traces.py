"""Traces made by hand, in the text that Kineto writes.

    trace = Trace(rank=0, world_size=2)
    trace.step(1, at=0).step(2, at=100)
    trace.kernel("gemm", at=10, lasts=5)
    trace.write(tmp_path)

Times are microseconds. A kernel is launched two microseconds before it starts, unless ``launched`` says when, or None.
"""

import gzip
import json
from pathlib import Path
from typing import Any, Self

EPOCH_US = 1_712_195_495_505_583
LAUNCH_US = 2.0
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy HtoD (Pageable -> Device)"


class Trace:
    """One file; every method appends events and returns the trace."""

    def __init__(self, *, rank: int | None = 0, world_size: int | None = 1, origin_us: int = EPOCH_US) -> None:
        self.rank = rank
        self.world_size = world_size
        self.origin_us = origin_us
        self.events: list[str] = []
        self.facts: dict[str, Any] = {}
        self._correlation = 0

    def event(self, cat: str, name: str, at: float, lasts: float | None = None, **args: Any) -> Self:
        """Append an event."""
        duration = "" if lasts is None else f', "dur": {lasts:.3f}'
        self.events.append(
            f'  {{\n    "ph": "X", "cat": {json.dumps(cat)}, "name": {json.dumps(name)}, "pid": 1, "tid": 1,\n'
            f'    "ts": {_time(self.origin_us, at)}{duration},\n    "args": {json.dumps(args)}\n  }}'
        )
        return self

    def step(self, number: int, *, at: float, lasts: float = 1.0) -> Self:
        """Mark a step."""
        return self.event("user_annotation", f"ProfilerStep#{number}", at, lasts)

    def kernel(
        self,
        name: str,
        *,
        at: float,
        lasts: float,
        launched: float | None = -1.0,
        stream: Any = 7,
        device: int = 0,
        cat: str = "kernel",
        **args: Any,
    ) -> Self:
        """Run a kernel."""
        self._correlation += 1
        if launched is not None:
            launch = max(0.0, at - LAUNCH_US) if launched < 0 else launched
            self.event("cuda_runtime", "cudaLaunchKernel", launch, 1.0, correlation=self._correlation)
        return self.event(cat, name, at, lasts, device=device, stream=stream, correlation=self._correlation, **args)

    def all_reduce(self, *, at: float, lasts: float, stream: int = 20, **args: Any) -> Self:
        """Run a communication kernel that names its group."""
        told = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "default_pg"}
        return self.kernel(ALL_REDUCE, at=at, lasts=lasts, stream=stream, **{**told, **args})

    def copy(self, *, at: float, lasts: float, stream: int = 7) -> Self:
        """Copy from the host."""
        return self.kernel(COPY, at=at, lasts=lasts, stream=stream, cat="gpu_memcpy")

    def text(self) -> str:
        """Return the content of the file."""
        told = {
            key: value for key, value in (("rank", self.rank), ("world_size", self.world_size)) if value is not None
        }
        distributed = f'  "distributedInfo": {json.dumps(told)},\n' if told else ""
        facts = "".join(f",\n  {json.dumps(key)}: {json.dumps(value)}" for key, value in self.facts.items())
        events = ",\n".join(self.events)
        head = f'\n{{\n  "schemaVersion": 1,\n  "deviceProperties": [\n  ],\n{distributed}  "traceEvents": [\n'
        return f'{head}{events}\n  ],\n  "traceName": "x.json"{facts}\n}}\n'

    def on_one_line(self) -> str:
        """Return the same as another tool would write it again."""
        return json.dumps(json.loads(self.text()))

    def write(self, directory: Path, name: str | None = None, *, packed: bool = False) -> Path:
        """Write the file and return its path."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / (name or f"trace_rank-{self.rank}.pt.trace.json{'.gz' if packed else ''}")
        content = self.text().encode()
        path.write_bytes(gzip.compress(content) if packed else content)
        return path


def _time(origin_us: int, at: float) -> str:
    nanoseconds = origin_us * 1000 + round(at * 1000)
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
