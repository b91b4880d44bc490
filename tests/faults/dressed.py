"""Training as libraries wrap it, that got a wrong or a vague verdict when it was first tried.

The line that is the root carries ROOT.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, IterableDataset

from tests.faults.job import RANK, WORLD, Samples, layers, model, start, summed

log = logging.getLogger(__name__)


def _epoch(
    network: nn.Module, optimizer: torch.optim.Optimizer, batches: Any, after: Any = lambda number: None
) -> None:
    for number, batch in enumerate(batches):
        network(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after(number)


def _sgd(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.01)


def _sharded(mesh: Any = None) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    network = layers()
    for unit in (network[0], network[2], network):
        fully_shard(unit, mesh=mesh)
    return network


# ---- errors that libraries hand on ----------------------------------------------------------------------------------
def stage_raises() -> None:
    """The schedule wraps what a stage raises, and its own message begins with an empty line."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    class Stage(nn.Linear):
        calls = 0

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if RANK == 1 and self.calls == 7:
                raise IndexError("token 50257 is out of range")  # ROOT
            return super().forward(values)

    stage = PipelineStage(Stage(8, 8), RANK, WORLD, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda output, target: (output - target).square().mean())
    for _ in range(3):
        arguments = (torch.randn(8, 8),) if RANK == 0 else ()
        schedule.step(*arguments, target=torch.randn(8, 8) if RANK == WORLD - 1 else None)


def part_not_written() -> None:
    """The disk of one rank is full, and all of them raise what they gathered."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    class Full(FileSystemWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            if RANK == 2:
                raise OSError(28, "No space left on device")  # ROOT
            return super().write_data(plan, planner)

    save({f"weight{rank}": torch.ones(8) for rank in range(WORLD)}, storage_writer=Full("checkpoint"))


def model_differs() -> None:
    """One rank's configuration has a layer more, which all ranks notice."""
    deeper = nn.Sequential(*layers(), nn.Linear(1, 1)) if RANK == 1 else layers()
    nn.parallel.DistributedDataParallel(deeper)


def error_swallowed() -> None:
    """An error ends the epoch on one rank, is logged, and the job goes on with what comes after the epoch."""

    def read(number: int) -> None:
        if RANK == 2 and number == 3:
            raise FileNotFoundError("/data/00017.tar")

    network = model()
    try:
        _epoch(network, _sgd(network), DataLoader(Samples(24), batch_size=2), read)  # ROOT
    except FileNotFoundError:
        log.exception("the epoch ended early")
    summed(1)


# ---- passes and epochs ----------------------------------------------------------------------------------------------
def evaluated_through_wrapper() -> None:
    """Rank 0 alone evaluates with the wrapped model, which sends its buffers around."""
    network = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    optimizer = _sgd(network)

    def evaluate() -> None:
        for batch in DataLoader(Samples(8), batch_size=4):
            network(batch)

    for number in range(3):
        _epoch(network, optimizer, DataLoader(Samples(12), batch_size=4))
        if RANK == 0 and number == 1:
            evaluate()  # ROOT


def saved_by_most() -> None:
    """Whether it is time for a checkpoint is a matter of each rank's own clock."""
    from torch.distributed.checkpoint.state_dict_saver import save

    network = model()
    optimizer = _sgd(network)
    for number in range(3):
        _epoch(network, optimizer, DataLoader(Samples(6), batch_size=2))
        if number == 1 and RANK != 1:
            save({"model": network.module.state_dict()}, checkpoint_id="checkpoint")  # ROOT


def passes_differ() -> None:
    """One rank cuts one of its batches into more parts; nothing fails before the end of the job."""
    network = _sharded()
    optimizer = _sgd(network)
    for number in range(4):
        for _ in range(5 if RANK == 1 and number == 2 else 4):
            network(torch.randn(2, 8)).sum().backward()  # ROOT
        optimizer.step()
        optimizer.zero_grad()


class Shards(IterableDataset[torch.Tensor]):
    """What a rank streams, which nobody made equally long."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.randn(8) for _ in range(self.length))


def shard_too_short() -> None:
    """In two dimensions the rank whose data ends waits in the world, and the others in four groups of two."""
    network = _sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    _epoch(network, _sgd(network), DataLoader(Shards(6 if RANK == 3 else 10), batch_size=2))
    summed(1)


def joined_in_part() -> None:
    """Join shadows the gradients of ranks with fewer batches, and not what the loop sums besides."""
    network = model()
    with Join([network]):
        _epoch(network, _sgd(network), DataLoader(Samples(8 if RANK == 0 else 12), batch_size=2), lambda _: summed(1))


def gradient_detached() -> None:
    """One rank's loss needs no gradient in one step, so that it leaves out the sums of the backward pass."""
    from torch.distributed.nn.functional import all_gather

    weights = nn.Linear(8, 4)
    for number in range(4):
        features = weights(torch.randn(2, 8))
        with torch.no_grad() if RANK == 1 and number == 2 else contextlib.nullcontext():
            loss: Any = torch.cat(all_gather(features)).square().mean()  # type: ignore[no-untyped-call]  # torch has none
        if loss.requires_grad:
            loss.backward()  # ROOT
        dist.barrier()


if __name__ == "__main__":
    start(globals())
