"""Watches memory: the process and its cgroup, and the CUDA allocator where there is one."""

import inspect
import os
import pickle
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from distdiag import events
from distdiag.errors import guard
from distdiag.hooks._patch import Undo
from distdiag.journal import within_patience
from distdiag.recorder import Recorder

MOST_REPORTS = 2
"""Of a process: a program that catches the error and tries again gets it again and again."""
MOST_ITEMS = 8
MOST_BYTES = 32 << 20
"""Of a snapshot's file; of more the largest segments are kept."""
IN_USE = "active_allocated"
PROTOCOL = 4
Segments = Sequence[Mapping[str, Any]]
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


class Allocations:
    """Tells what is allocated, a few times, where the allocator can be asked without the device."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told = 0

    def fill(self, sample: events.Memory) -> None:
        """Add the largest items and, where the user lets torch record where memory is allocated, a snapshot's file."""
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        busy = self._told >= MOST_REPORTS or self._recorder.capturing
        if cuda is None or busy or not cuda.is_initialized():
            return
        self._told += 1
        segments = _segments(cuda.memory_snapshot)
        sample.largest = largest(segments, self._recorder.sites.user_frames)
        if getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)():  # type: ignore[union-attr] # it is there
            with guard("write a memory snapshot"):
                path = self._recorder.beside(f".oom{self._told}.pickle")
                if within_patience(partial(_write, path, segments), otherwise=False):
                    sample.snapshot = path.name


def _segments(memory_snapshot: Callable[..., Segments]) -> Segments:
    """Return the allocator's segments; without the history, of which there may be millions of entries."""
    known = inspect.signature(memory_snapshot).parameters
    return memory_snapshot(include_traces=False) if "include_traces" in known else memory_snapshot()


def largest(
    segments: Segments, user_frames: Callable[[list[tuple[str, int, str]]], list[str]]
) -> list[events.Allocation]:
    """Return the sites that hold most, or sizes of blocks where no sites are known, the largest first."""
    sizes: defaultdict[tuple[str, ...] | int, int] = defaultdict(int)
    blocks: defaultdict[tuple[str, ...] | int, int] = defaultdict(int)
    known: dict[int, tuple[str, ...]] = {}
    for block in (block for segment in segments for block in segment["blocks"] if block["state"] == IN_USE):
        frames = block.get("frames") or ()
        if frames and id(frames) not in known:
            outermost_first = [(each["filename"], each["line"], each["name"]) for each in reversed(frames)]
            known[id(frames)] = tuple(user_frames(outermost_first))
        key = known.get(id(frames)) or int(block["size"])
        sizes[key] += int(block["size"])
        blocks[key] += 1
    first = sorted(sizes, key=lambda key: -sizes[key])[:MOST_ITEMS]
    return [
        events.Allocation(size_bytes=sizes[key], blocks=blocks[key], frames=[] if isinstance(key, int) else list(key))
        for key in first
    ]


def _write(path: Path, segments: Segments) -> bool:
    """Write a snapshot as ``torch.cuda.memory._dump_snapshot`` does, without its history."""
    kept = sorted(segments, key=lambda segment: -int(segment["total_size"]))
    while True:
        data = pickle.dumps({"segments": kept, "device_traces": []}, protocol=PROTOCOL)
        if len(data) <= MOST_BYTES or not kept:
            break
        kept = kept[: len(kept) // 2]
    path.write_bytes(data)
    return True
