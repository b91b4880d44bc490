"""Watches memory: the process and its cgroup, and the CUDA allocator where there is one."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from distdiag import events
from distdiag.errors import guard
from distdiag.hooks._allocations import Allocations
from distdiag.hooks._patch import Undo
from distdiag.recorder import Recorder

CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.max"),
    ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
CGROUP_STATISTICS = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")
RECLAIMABLE = ("inactive_file", "total_inactive_file")
NEAR_LIMIT = 0.8
"""Below this share of the limit nobody asks how much of it is files, and reading that takes 0.1 ms."""
WORKERS_EVERY_NS = 1_000_000_000
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NO_LIMIT = 1 << 60
"""The first version of cgroups writes a huge number where there is no limit."""


def install(recorder: Recorder) -> Undo:
    """Let the recorder sample memory at steps, pulses and faults."""
    process = psutil.Process()

    workers = Workers(recorder)

    allocations = Allocations(recorder)

    def sample(ran_out: bool = False) -> None:
        taken = sampled(process, recorder.step)
        taken.workers_bytes = workers.own_bytes(taken.time_ns)
        if ran_out:
            with guard("look at what is allocated"):
                allocations.fill(taken)
        recorder.write(taken)

    recorder.sample_memory = sample

    def undo() -> None:
        recorder.sample_memory = lambda ran_out=False: None

    return undo


def sampled(process: psutil.Process, step: int) -> events.Memory:
    """Return the memory of this process now; a few tens of microseconds, no device synchronisation."""
    own: Any = process.memory_info()
    sample = events.Memory(
        time_ns=time.monotonic_ns(), step=step, rss_bytes=own.rss, shared_bytes=getattr(own, "shared", None)
    )
    sample.host_available_bytes = psutil.virtual_memory().available
    for usage, limit in CGROUP_FILES:
        if os.path.exists(usage):
            sample.cgroup_bytes = _number(usage)
            bound = _number(limit)
            sample.cgroup_limit_bytes = bound if bound is not None and bound < NO_LIMIT else None
            _add_reclaimable(sample)
            break
    _add_allocator(sample)
    return sample


def _add_reclaimable(sample: events.Memory) -> None:
    """Add what of the control group's memory are files that the kernel would drop, if it matters."""
    if sample.cgroup_limit_bytes is None or (sample.cgroup_bytes or 0) < NEAR_LIMIT * sample.cgroup_limit_bytes:
        return
    for path in CGROUP_STATISTICS:
        if os.path.exists(path):
            fields = dict(line.split(" ", 1) for line in Path(path).read_text().splitlines() if " " in line)
            known = [int(fields[name]) for name in RECLAIMABLE if name in fields]
            sample.cgroup_reclaimable_bytes = max(known, default=None)
            return


class Workers:
    """The memory of data loaders' workers, which are processes of their own."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._next_ns = 0
        self._bytes: int | None = None

    def own_bytes(self, now_ns: int) -> int | None:
        """Return what all workers hold and share with nobody, not read more often than once a second."""
        if self._recorder.worker_pids and now_ns >= self._next_ns:
            self._next_ns = now_ns + WORKERS_EVERY_NS
            held = {pid: _own_bytes(pid) for pid in list(self._recorder.worker_pids)}
            self._recorder.worker_pids -= {pid for pid, size in held.items() if size is None}
            self._bytes = sum(size for size in held.values() if size is not None)
        return self._bytes if self._recorder.worker_pids else None


def _own_bytes(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return None
    return (int(fields[1]) - int(fields[2])) * PAGE_BYTES


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
