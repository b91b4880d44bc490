"""Programs as people write them, that got a wrong or a vague verdict when they were first tried.

The line that is the root carries ROOT.
"""

import concurrent.futures
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import distdiag
from tests.faults.job import RANK, WORLD, Samples, model, passes, start, summed

log = logging.getLogger(__name__)


class Trainer:
    """A loop with callbacks, as frameworks have it."""

    def __init__(self, *callbacks: Callable[[int], None]) -> None:
        self.network = model()
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=0.01)
        self.callbacks = callbacks

    def fit(self, batches: Iterator[torch.Tensor], steps: int = 5) -> None:
        for number in range(steps):
            self.network(next(batches)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            for callback in self.callbacks:
                callback(number)
        dist.barrier()


def random_batches() -> Iterator[torch.Tensor]:
    while True:
        yield torch.randn(2, 8)


# ---- somebody does not come -----------------------------------------------------------------------------------------
def two_are_stuck() -> None:
    """Rank 1 waits for its data, rank 3 for somebody to write into a pipe."""

    def wait_for_driver(number: int) -> None:
        if RANK == 3 and number == 1:
            os.read(os.pipe()[0], 1)

    loader = torch.utils.data.DataLoader(Samples(40, stuck=4 if RANK == 1 else None), batch_size=2)
    Trainer(wait_for_driver).fit(iter(loader))


def producer_died() -> None:
    """The thread that prepares batches has died, and nobody looks after it."""
    ready: queue.Queue[torch.Tensor] = queue.Queue(2)

    def produce() -> None:
        for number in range(8):
            if RANK == 1 and number == 3:
                raise ValueError("corrupt shard 3")
            ready.put(torch.randn(2, 8))

    threading.Thread(target=produce, daemon=True).start()
    Trainer().fit(iter(lambda: ready.get(), None))  # ROOT


def lock_held() -> None:
    """Rank 2 waits for a thread that waits for a lock which rank 2 holds."""
    lock, pool = threading.Lock(), concurrent.futures.ThreadPoolExecutor(1)

    def flush() -> None:
        with lock:
            log.info("flushed")

    def save(number: int) -> None:
        if RANK == 2 and number == 1:
            with lock:
                pool.submit(flush).result()  # ROOT
        else:
            pool.submit(flush).result()

    Trainer(save).fit(random_batches())


def gave_up_on_loss() -> None:
    def guard(number: int) -> None:
        if RANK == 2 and number == 2:
            sys.exit(1)  # ROOT

    Trainer(guard).fit(random_batches())


def barrier_in_handler() -> None:
    """The error is logged, all are to meet before the end, and what comes to the top is the barrier's time-out."""

    def tokenize(number: int) -> None:
        if RANK == 1 and number == 1:
            raise ValueError("no tokens")  # ROOT

    try:
        Trainer(tokenize).fit(random_batches())
    except ValueError:
        log.exception("training failed")
        dist.barrier()
        raise


# ---- a call too many, or one left out -------------------------------------------------------------------------------
def gradient_missing() -> None:
    """Gradients are averaged by hand where there are any; all are of one size, so that nothing fails for a while."""
    weights = [torch.nn.Parameter(torch.ones(8)) for _ in range(4)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    for number in range(3):
        used = weights[:3] if RANK == 1 and number == 1 else weights
        loss: Any = torch.stack([weight.sum() for weight in used]).sum()
        loss.backward()
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:  # ROOT
            work.wait()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()


class Shared(torch.autograd.Function):
    """A sum over all ranks."""

    @staticmethod
    def forward(ctx: object, values: torch.Tensor) -> torch.Tensor:
        values = values.clone()
        dist.all_reduce(values)  # the root, in recomputation
        return values

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def recomputed_apart() -> None:
    """A branch is drawn anew when activations are recomputed, and on rank 1 it falls the other way."""
    drawn = []

    def block(values: torch.Tensor) -> torch.Tensor:
        drawn.append(1)
        if RANK == 1 and len(drawn) == 4:
            return values * 2
        shared: torch.Tensor = Shared.apply(values)  # type: ignore[no-untyped-call]  # torch has none
        return shared * 2

    weight = torch.ones(4, requires_grad=True)
    for _ in range(3):
        output: Any = checkpoint(block, weight, use_reentrant=True)
        output.sum().backward()
        summed(1)
        distdiag.step()


# ---- messages -----------------------------------------------------------------------------------------------------
def wrong_neighbour() -> None:
    """One rank sends to the rank before it instead of the one behind it."""
    here, there = torch.ones(4), torch.empty(4)
    for number in range(3):
        to = (RANK - 1 if RANK == 2 and number == 1 else RANK + 1) % WORLD
        messages = [dist.P2POp(dist.isend, here, to), dist.P2POp(dist.irecv, there, (RANK - 1) % WORLD)]
        for work in dist.batch_isend_irecv(messages):  # ROOT
            work.wait()
        summed(1)
        distdiag.step()


# ---- what no backend refuses ----------------------------------------------------------------------------------------
def list_too_short() -> None:
    for number in range(3):
        tensors = [torch.ones(4) for _ in range(2 if RANK == 2 and number == 1 else 3)]
        dist.all_reduce_coalesced(tensors)  # ROOT


def reduced_apart() -> None:
    """One rank's configuration asks for the maximum."""
    kind = dist.ReduceOp.MAX if RANK == 2 else dist.ReduceOp.SUM
    for _ in range(3):
        dist.all_reduce(torch.ones(4), op=kind)  # ROOT


METRICS = {
    "loss": dist.ReduceOp.SUM,
    "tokens": dist.ReduceOp.SUM,
    "peak": dist.ReduceOp.MAX,
    "right": dist.ReduceOp.SUM,
}


def maximum_skipped() -> None:
    """Metrics are reduced in one line, each in its own way; one rank has no peak in its second pass."""
    for number, _ in enumerate(passes(4)):
        for name, kind in METRICS.items():
            if not (name == "peak" and RANK == 2 and number == 1):
                dist.all_reduce(torch.ones(1), op=kind)  # ROOT
    dist.barrier()


def part_too_small() -> None:
    parts = [torch.ones(4) for _ in range(WORLD)] if RANK == 0 else None
    dist.scatter(torch.empty(5 if RANK == 2 else 4), parts, src=0)  # ROOT


if __name__ == "__main__":
    start(globals())
