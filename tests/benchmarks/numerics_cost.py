"""What numerics add to a training step: ``python tests/benchmarks/numerics_cost.py [--steps 60]``.

Two gloo ranks train a DDP model of 10 million parameters, recorded. The processor time that each part of the hooks on
losses, norms, gradients and replicas takes in the training thread is summed, and set against that of a step. Processor
time, because on a shared machine elapsed time is mostly that of others; the timers count as cost, so that the figures
are upper bounds. A wrapper that watches a function costs something beside its observer, which is measured apart.

Then what the records of batches take in the training thread: ids, digests and counts of tokens of what comes from
a ``DataLoader``, set against the same step.
"""

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import distdiag
from distdiag.hooks import _patch, dataloader, numerics, replicas

RANKS = 2
WIDTH, DEPTH = 1024, 10
BATCH = 32
WARM_UP_STEPS = 10
WRAPPERS = 3
"""Functions that are watched for numerics in each step: the forward, the backward and the norm."""
CAP_SECONDS = 300
PARTS: tuple[tuple[type[Any], str, str], ...] = (
    (numerics._Backward, "before", "loss"),
    (numerics._Norm, "after", "norm"),
    (numerics.Numerics, "see_gradient", "local gradients"),
    (numerics.Numerics, "end", "record of the step"),
    (replicas._Forward, "before", "forward"),
    (replicas.Replicas, "before_step", "replicas, checksum left out"),
    (replicas.Replicas, "_check", "checksum"),
)
CHECKSUM = "checksum"
BATCH_PARTS: tuple[tuple[type[Any], str], ...] = (
    (dataloader._Indices, "after"),
    (dataloader._Next, "before"),
    (dataloader._Next, "after"),
)
BATCHES = 200
SHAPES = {"8 x 4,096 tokens": (8, 4096), "64 x 512 tokens": (64, 512), "1,024 x 64 tokens": (1024, 64)}
IMAGES = 64


class Spent:
    """Processor time of parts of the hooks, in nanoseconds."""

    def __init__(self) -> None:
        self.totals: defaultdict[str, int] = defaultdict(int)
        self.checks: list[int] = []

    def time(self, owner: type[Any], name: str, part: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time_ns()
            result = original(*args, **kwargs)
            spent = time.thread_time_ns() - start
            self.totals[part] += spent
            if part == CHECKSUM:
                self.checks.append(spent)
                self.totals["replicas, checksum left out"] -= spent  # it is called from there
            return result

        setattr(owner, name, timed)


def per_wrapper_ns() -> float:
    """Return what watching a function costs beside the observer."""

    class Owner:
        @staticmethod
        def function() -> None: ...

    class Nothing:
        def before(self, args: Any, kwargs: Any) -> None: ...

        def after(self, token: Any, result: Any, error: Any) -> None: ...

    def timed(count: int = 20_000) -> float:
        start = time.thread_time_ns()
        for _ in range(count):
            Owner.function()
        return (time.thread_time_ns() - start) / count

    bare = min(timed() for _ in range(5))
    _patch.observe(Owner, "function", Nothing())
    return min(timed() for _ in range(5)) - bare


def measure(rank: int, steps: int, directory: Path, answer: Connection) -> None:
    """Run one rank and send what was measured."""
    torch.set_num_threads(1)
    spent = Spent()
    for part in PARTS:
        spent.time(*part)
    distdiag.install(directory / "logs")
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(BATCH, WIDTH)
    durations = []
    for number in range(WARM_UP_STEPS + steps):
        if number == WARM_UP_STEPS:
            spent.totals.clear()
        start = time.process_time_ns()
        loss: Any = model(inputs).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        durations.append(time.process_time_ns() - start)
    answer.send((statistics.median(durations[WARM_UP_STEPS:]), dict(spent.totals), spent.checks, per_wrapper_ns()))
    dist.barrier()
    dist.destroy_process_group()


class Texts(Dataset[dict[str, Tensor]]):
    """Token ids with a mask and labels; every sample is the same memory, for what is read of it is what counts."""

    def __init__(self, length: int) -> None:
        self.sample = {
            "input_ids": torch.arange(length),
            "attention_mask": torch.ones(length, dtype=torch.int64),
            "labels": torch.arange(length),
        }

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.sample


class Images(Dataset[tuple[Tensor, int]]):
    """Pictures with a label."""

    def __init__(self) -> None:
        self.sample = torch.rand(3, 224, 224)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.sample, index


def measure_batches(directory: Path, answer: Connection) -> None:
    """Take batches of several shapes from recorded loaders, and send the processor time of each batch's records."""
    torch.set_num_threads(1)
    spent = [0]

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time_ns()
            result = original(*args, **kwargs)
            spent[0] += time.thread_time_ns() - start
            return result

        return watched

    for owner, name in BATCH_PARTS:
        setattr(owner, name, timed(getattr(owner, name)))
    distdiag.install(directory / "logs")
    told: dict[str, float] = {}
    loaders: dict[str, tuple[Dataset[Any], int]] = {
        **{shape: (Texts(length), size) for shape, (size, length) in SHAPES.items()},
        f"{IMAGES} images of 3 x 224 x 224": (Images(), IMAGES),
    }
    for shape, (samples, size) in loaders.items():
        each: list[int] = []
        # A sampler of indices alone, so that the data set needs no length.
        for _ in DataLoader(samples, batch_size=size, sampler=range(size * (BATCHES + WARM_UP_STEPS))):
            each.append(spent[0])
            spent[0] = 0
        told[shape] = statistics.median(each[WARM_UP_STEPS:])
    answer.send(told)


def run_batches() -> dict[str, float]:
    """Return the nanoseconds of processor time that the records of one batch take, by its shape."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="distdiag-bench-") as name:
        near, far = context.Pipe(duplex=False)
        process = context.Process(target=measure_batches, args=(Path(name), far))
        process.start()
        try:
            if not near.poll(CAP_SECONDS):
                raise TimeoutError(f"no answer in {CAP_SECONDS} s")
            told: dict[str, float] = near.recv()
            return told
        finally:
            process.join(10)
            process.kill()


def run_ranks(steps: int) -> list[tuple[float, dict[str, int], list[int], float]]:
    """Return what each rank measured."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="distdiag-bench-") as name:
        ends = [context.Pipe(duplex=False) for _ in range(RANKS)]
        ranks = [
            context.Process(target=measure, args=(rank, steps, Path(name), ends[rank][1])) for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        try:
            if not all(end.poll(CAP_SECONDS) for end, _ in ends):
                raise TimeoutError(f"no answer in {CAP_SECONDS} s")
            return [end.recv() for end, _ in ends]
        finally:
            for process in ranks:
                process.join(10)
                process.kill()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    steps: int = parser.parse_args().steps
    measured = run_ranks(steps)
    for rank, (step_ns, totals, checks, wrapper_ns) in enumerate(measured):
        check_ns = statistics.median(checks)
        parts = {part: ns / steps for part, ns in totals.items() if part != CHECKSUM}
        parts["wrappers"] = WRAPPERS * wrapper_ns
        sys.stdout.write(f"rank {rank}: a step takes {step_ns / 1e6:.1f} ms of processor time\n")
        for part, each_ns in parts.items():
            sys.stdout.write(f"  {part:30}{each_ns / 1e3:9.1f} us a step\n")
        total = sum(parts.values())
        sys.stdout.write(
            f"  {'numerics':30}{total / 1e3:9.1f} us a step   {100 * total / step_ns:.3f} % (target 0.5 %)\n"
            f"  {'checksum':30}{check_ns / 1e3:9.1f} us a check  "
            f"{100 * check_ns / (100 * step_ns):.3f} % of 100 steps (target 0.2 %)\n"
        )
    step_ns = statistics.median(each[0] for each in measured)
    sys.stdout.write("records of a batch\n")
    for shape, batch_ns in run_batches().items():
        share = 100 * batch_ns / step_ns
        sys.stdout.write(f"  {shape:30}{batch_ns / 1e3:9.1f} us a batch  {share:.3f} % of such a step\n")


if __name__ == "__main__":
    main()
