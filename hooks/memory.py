"""Watches memory: the process and its cgroup, and the CUDA allocator where there is one."""

import os
import sys
import time
from pathlib import Path

import psutil

from distdiag import events
from distdiag.hooks._patch import Undo
from distdiag.recorder import Recorder

CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.max"),
    ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
NO_LIMIT = 1 << 60
"""The first version of cgroups writes a huge number where there is no limit."""


def install(recorder: Recorder) -> Undo:
    """Let the recorder sample memory at steps, pulses and faults."""
    process = psutil.Process()

    def sample() -> None:
        recorder.write(sampled(process, recorder.step))

    recorder.sample_memory = sample

    def undo() -> None:
        recorder.sample_memory = lambda: None

    return undo


def sampled(process: psutil.Process, step: int) -> events.Memory:
    """Return the memory of this process now; a few tens of microseconds, no device synchronisation."""
    sample = events.Memory(time_ns=time.monotonic_ns(), step=step, rss_bytes=process.memory_info().rss)
    sample.host_available_bytes = psutil.virtual_memory().available
    for usage, limit in CGROUP_FILES:
        if os.path.exists(usage):
            sample.cgroup_bytes = _number(usage)
            bound = _number(limit)
            sample.cgroup_limit_bytes = bound if bound is not None and bound < NO_LIMIT else None
            break
    _add_allocator(sample)
    return sample


def _number(path: str) -> int | None:
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _add_allocator(sample: events.Memory) -> None:
    """Add the CUDA allocator's own counters; they are kept on the host and cost no synchronisation."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    statistics = cuda.memory_stats()
    sample.allocated_bytes = statistics.get("allocated_bytes.all.current")
    sample.reserved_bytes = statistics.get("reserved_bytes.all.current")
    sample.peak_allocated_bytes = statistics.get("allocated_bytes.all.peak")
    sample.peak_reserved_bytes = statistics.get("reserved_bytes.all.peak")
    sample.alloc_retries = statistics.get("num_alloc_retries")
    sample.ooms = statistics.get("num_ooms")
    sample.device_bytes = cuda.get_device_properties(cuda.current_device()).total_memory
