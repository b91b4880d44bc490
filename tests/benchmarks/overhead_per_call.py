"""What recording adds to one collective: ``python tests/benchmarks/overhead_per_call.py [--blocks 15]``.

An all_reduce that does nothing (the ``fake`` backend) is called in short blocks: bare, recorded, and under two
tools of torch that watch calls too. The blocks take turns in random order, so that a noisy machine is noisy for
all of them, and medians are printed: elapsed time, and the time the thread itself was on a processor.
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import distdiag
from distdiag import events
from distdiag.hooks._operators import BELOW, put_in_front, redispatch
from distdiag.journal import read_lines, segments_of

CALLS = 3000
WARM_UP_CALLS = 300
"""Caches, and the interpreter's specialisation of what runs often."""
TARGETS = "targets of recorded: added 12 us, ratio 4, 250 bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Microseconds per call, in one block or in the median of several."""

    elapsed: float
    processor: float


@contextlib.contextmanager
def recorded(directory: Path) -> Iterator[None]:
    """Record into a directory."""
    distdiag.install(directory)
    try:
        yield
    finally:
        distdiag.uninstall()


@contextlib.contextmanager
def passed_on() -> Iterator[None]:
    """Let a kernel in Python do nothing but pass calls on: what any hook of this kind costs at least."""
    send_on = redispatch("c10d", "allreduce_")
    assert send_on is not None
    undo = put_in_front("c10d", {"allreduce_": lambda keyset, *args: send_on(keyset & BELOW, *args)})
    try:
        yield
    finally:
        undo()


@contextlib.contextmanager
def profiled(*, stacks: bool) -> Iterator[None]:
    """Run under torch's profiler, without the lines that it writes to standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=stacks):
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def reduce(calls: int, tensor: torch.Tensor) -> Cost:
    """Call all_reduce and return what one call took."""
    elapsed = processor = 0
    for number in range(-WARM_UP_CALLS, calls):
        if number == 0:
            elapsed, processor = time.perf_counter_ns(), time.thread_time_ns()
        dist.all_reduce(tensor)  # one line for all: calls from another line would be new to the recorder
    processor, elapsed = time.thread_time_ns() - processor, time.perf_counter_ns() - elapsed
    return Cost(elapsed=elapsed / calls / 1e3, processor=processor / calls / 1e3)


def measure(watchers: dict[str, Callable[[], AbstractContextManager[object]]], blocks: int) -> dict[str, Cost]:
    """Return the median cost of a call under each watcher."""
    tensor = torch.ones(4)
    costs: dict[str, list[Cost]] = {name: [] for name in watchers}
    for _ in range(blocks):
        for name in random.sample(list(watchers), len(watchers)):
            with watchers[name]():
                costs[name].append(reduce(CALLS, tensor))
    return {
        name: Cost(
            elapsed=statistics.median(cost.elapsed for cost in measured),
            processor=statistics.median(cost.processor for cost in measured),
        )
        for name, measured in costs.items()
    }


def bytes_per_call(directory: Path) -> float:
    """Return the bytes of a call and of its end, over all logs of a directory."""
    calls = size = 0
    for log in segments_of(directory):
        for file in log.files:
            for line in read_lines(file):
                record = events.decode(line)
                calls += isinstance(record, events.Call)
                size += len(line) * isinstance(record, events.Call | events.Done)
    return size / calls


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=15)
    blocks: int = parser.parse_args().blocks
    torch.set_num_threads(1)
    os.environ["RANK"] = "0"
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    with tempfile.TemporaryDirectory(prefix="distdiag-bench-") as name:
        directory = Path(name)
        costs = measure(
            {
                "bare": contextlib.nullcontext,
                "empty kernel": passed_on,
                "recorded": partial(recorded, directory),
                "CommDebugMode": CommDebugMode,
                "torch.profiler": partial(profiled, stacks=False),
                "  with stacks": partial(profiled, stacks=True),
            },
            blocks,
        )
        size = bytes_per_call(directory)
    dist.destroy_process_group()
    bare = costs["bare"]
    sys.stdout.write(f"{'us per call':16}{'elapsed':>10}{'added':>10}{'ratio':>8}{'processor':>12}{'added':>10}\n")
    for name, cost in costs.items():
        sys.stdout.write(
            f"{name:16}{cost.elapsed:10.1f}{cost.elapsed - bare.elapsed:10.1f}{cost.elapsed / bare.elapsed:8.1f}"
            f"{cost.processor:12.1f}{cost.processor - bare.processor:10.1f}\n"
        )
    sys.stdout.write(f"{size:.0f} bytes per call on disk, its end included\n{TARGETS}\n")


if __name__ == "__main__":
    main()
