"""What holds the memory of a CUDA device at the moment at which more of it could not be had."""

import inspect
import pickle
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from distdiag import events
from distdiag.errors import guard
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
