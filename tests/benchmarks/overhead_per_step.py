"""What recording adds to a training step: ``python tests/benchmarks/overhead_per_step.py [--seconds 100]``.

Two gloo ranks train a DDP model of 10 million parameters, then one of 32 ``fully_shard`` units, which is mostly
collectives. Blocks of steps, bare and recorded, alternate within the same two processes; what is printed is
recorded / bare: the ratio of the medians over all pairs of blocks, and its 95 % interval (bootstrap over pairs).

Elapsed time is what counts, and on a shared machine it is mostly noise: hence the processor time of both ranks,
all threads included, beside it. Give it more ``--seconds`` per model for a narrower interval.
"""

import argparse
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import distdiag

RANKS = 2
WARM_UP_STEPS = 6
"""After recording began: threads start, what calls have in common is written once, and the replicas are compared in
each of the first four steps, later in one of a hundred."""
CALIBRATION_STEPS = 5
BLOCK_SECONDS = 1.2
"""Longer than the second between two pulses, so that each recorded block holds one."""
RESAMPLES = 4000
CAP_SECONDS = 120
"""How much longer than it was told a measurement may take before it counts as stuck."""

Train = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one rank took for a block of steps, in seconds per step."""

    elapsed: float
    processor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two blocks, one right after the other."""

    bare: Block
    recorded: Block


def train_ddp() -> Train:
    """Return a training step with few collectives and much computing: about 10 million parameters."""
    width, depth = 1024, 10
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)]))
    return _training(model, torch.randn(32, width))


def train_fsdp() -> Train:
    """Return a training step with many collectives and little computing: 32 sharded units."""
    width, depth = 128, 32
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return _training(model, torch.randn(8, width))


def _training(model: nn.Module, inputs: torch.Tensor) -> Train:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


MODELS = {"DDP, 10 M parameters": train_ddp, "FSDP, 32 units": train_fsdp}


def time_block(train: Train, steps: int) -> Block:
    """Time a block of steps, which both ranks begin together."""
    elapsed = processor = 0.0
    for number in range(WARM_UP_STEPS + steps):
        if number == WARM_UP_STEPS:
            dist.barrier()
            elapsed, processor = time.perf_counter(), time.process_time()
        train()  # one line for all steps: calls from another line would be new to the recorder
    processor, elapsed = time.process_time() - processor, time.perf_counter() - elapsed
    return Block(elapsed=elapsed / steps, processor=processor / steps)


def agreed(value: int) -> int:
    """Return rank 0's value on all ranks."""
    box = torch.tensor(value)
    dist.broadcast(box, 0)
    return int(box)


def measure(rank: int, model: str, directory: Path, seconds: float, answer: Connection) -> None:
    """Run one rank and send its pairs of blocks."""
    torch.set_num_threads(1)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(RANKS)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=RANKS)
    train = MODELS[model]()
    steps = agreed(max(1, int(BLOCK_SECONDS / time_block(train, CALIBRATION_STEPS).elapsed)))
    order = random.Random(0)  # the same on both ranks
    deadline = time.monotonic() + seconds
    pairs: list[Pair] = []
    while agreed(time.monotonic() < deadline):
        blocks: dict[bool, Block] = {}
        for recorded in order.sample((False, True), 2):
            if recorded:
                distdiag.install(directory / "logs")
            blocks[recorded] = time_block(train, steps)
            distdiag.uninstall()
        pairs.append(Pair(bare=blocks[False], recorded=blocks[True]))
    dist.barrier()
    dist.destroy_process_group()
    answer.send((steps, pairs))


def run_ranks(model: str, seconds: float) -> tuple[int, list[list[Pair]]]:
    """Return the steps per block, and the pairs of each rank."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="distdiag-bench-") as name:
        ends = [context.Pipe(duplex=False) for _ in range(RANKS)]
        ranks = [
            context.Process(target=measure, args=(rank, model, Path(name), seconds, ends[rank][1]))
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        try:
            if not all(end.poll(seconds + CAP_SECONDS) for end, _ in ends):
                raise TimeoutError(f"{model}: no answer in {seconds + CAP_SECONDS:.0f} s")
            answers: list[tuple[int, list[Pair]]] = [end.recv() for end, _ in ends]
        finally:
            for process in ranks:
                process.join(10)
                process.kill()
    return answers[0][0], [pairs for _, pairs in answers]


def ratio_of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    """Return recorded / bare."""
    return statistics.median(recorded for _, recorded in pairs) / statistics.median(bare for bare, _ in pairs)


def interval(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the 95 % interval of the ratio of medians."""
    draw = random.Random(0)
    ratios = sorted(ratio_of_medians(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES)]


def report(model: str, steps: int, ranks: list[list[Pair]]) -> None:
    """Print the lines of one model."""
    elapsed = [(pair.bare.elapsed, pair.recorded.elapsed) for pair in ranks[0]]
    processor = [
        (sum(pair.bare.processor for pair in both), sum(pair.recorded.processor for pair in both))
        for both in zip(*ranks, strict=True)
    ]
    for what, pairs in (("elapsed", elapsed), ("processor", processor)):
        low, high = interval(pairs)
        bare = statistics.median(bare for bare, _ in pairs) * 1e3
        sys.stdout.write(
            f"{model:22}{what:11}{bare:9.2f} ms bare   ratio {ratio_of_medians(pairs):.4f}"
            f"   95 % in {low:.4f} to {high:.4f}   {len(pairs)} pairs of {steps} steps\n"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100.0, help="per model, start-up not included")
    seconds: float = parser.parse_args().seconds
    for model in MODELS:
        report(model, *run_ranks(model, seconds))
    sys.stdout.write("target: ratio 1.005\n")


if __name__ == "__main__":
    main()
