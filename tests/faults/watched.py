"""Programs that are watched while they train, for as many seconds as the variable SECONDS says."""

import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import distdiag
from tests.faults.job import RANK, TIMEOUT, layers, model, start

OWN_SECONDS = 0.1
SLOWER = 1.3
PAUSE_SECONDS = 8.0
"""Longer than the limit of a stall where these programs are watched."""
SKIPPED_AT = 30
MOST_PENDING = 8
"""Metrics that are not waited for yet: those of the last steps."""


def training(own_seconds: float = OWN_SECONDS) -> Iterator[int]:
    """Train until time is up, as the first rank says; yield after each step."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    until = time.monotonic() + float(os.environ["SECONDS"])
    going, number = torch.ones(1), 0
    while going.item():
        time.sleep(own_seconds)
        optimizer.zero_grad()
        loss = network(torch.randn(4, 8)).pow(2).sum()
        loss.backward()
        optimizer.step()
        distdiag.step(loss=loss.item(), tokens=256)
        yield number
        number += 1
        going.fill_(float(time.monotonic() < until))
        dist.broadcast(going, 0)


def slow_rank() -> None:
    for _ in training(OWN_SECONDS * SLOWER if RANK == 1 else OWN_SECONDS):
        pass


def skipped_call() -> None:
    """One rank leaves a call out; its later ones meet those of others that have the same size, and nothing hangs."""
    metrics = dist.new_group(timeout=TIMEOUT)
    pending: deque[Any] = deque()
    for number in training():
        for kind in (torch.float32, torch.int32):
            if RANK == 1 and number == SKIPPED_AT and kind == torch.int32:
                continue
            pending.append(dist.all_reduce(torch.ones(4, dtype=kind), group=metrics, async_op=True))
        while len(pending) > MOST_PENDING:
            pending.popleft().wait()


class Held(Dataset[torch.Tensor]):
    """Samples to evaluate on."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(PAUSE_SECONDS / len(self))
        return torch.randn(8)


def healthy_pauses() -> None:
    """A compilation, evaluation that says so and evaluation that does not, and a checkpoint of one rank."""
    network = layers()
    compiled: Any = torch.compile(network, backend=_compiled_slowly)
    for number in training():
        if number == 10:
            compiled(torch.randn(4, 8))
        if number == 20:
            with distdiag.phase("evaluate"):
                time.sleep(PAUSE_SECONDS)
        if number == 30:
            for batch in DataLoader(Held()):
                network(batch)
        if number == 40 and RANK == 0:
            with distdiag.phase("save checkpoint"):
                time.sleep(PAUSE_SECONDS)


def _compiled_slowly(graph: Any, inputs: Any) -> Any:
    time.sleep(PAUSE_SECONDS)
    return graph.forward


if __name__ == "__main__":
    start(globals())
