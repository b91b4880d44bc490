"""Programs with sharded, tensor, pipeline, expert and context parallelism. The line that is the root carries ROOT."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.data import DataLoader

from tests.faults.job import FOREVER, RANK, WORLD, Samples, mesh_step, start, summed, three_dimensions


# ---- sharded --------------------------------------------------------------------------------------------------------
class Towers(nn.Module):
    """Text always, vision where the batch has an image."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.vision, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, batch: torch.Tensor, *, image: bool) -> torch.Tensor:
        hidden: torch.Tensor = self.text(batch)
        if image:
            hidden = hidden + self.vision(hidden)
        result: torch.Tensor = self.head(hidden)
        return result


def unit_skipped() -> None:
    from torch.distributed.fsdp import fully_shard

    network = Towers()
    for unit in (network.text, network.vision, network.head):
        fully_shard(unit)
    fully_shard(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for number in range(4):
        optimizer.zero_grad()
        network(torch.randn(2, 8), image=not (RANK == 1 and number == 2)).sum().backward()
        optimizer.step()


# ---- tensor ---------------------------------------------------------------------------------------------------------
def tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 8 * WORLD), nn.ReLU(), nn.Linear(8 * WORLD, 8))
    return parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def healthy_tensor_parallel() -> None:
    block = tensor_parallel(init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",)))
    for _ in range(3):
        block(torch.ones(2, 8)).sum().backward()


def tensor_call_missing() -> None:
    """One rank takes a hidden state from its cache instead of computing it with the others."""
    block = tensor_parallel(init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",)))
    cached = torch.ones(2, 8)
    for number in range(4):
        hidden = cached if RANK == 2 and number == 2 else block(torch.ones(2, 8))
        summed(3)
        cached = hidden.detach()
    dist.barrier()


# ---- pipeline -------------------------------------------------------------------------------------------------------
class Layer(nn.Module):
    """A stage that computes for ever in one of its micro-batches."""

    def __init__(self, stuck: int | None) -> None:
        super().__init__()
        self.linear, self.stuck, self.count = nn.Linear(8, 8), stuck, 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.count += 1
        while self.count == self.stuck:
            torch.randn(64, 64).sum()
        result: torch.Tensor = self.linear(batch)
        return result


def scheduled(stuck: int | None) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(Layer(stuck), RANK, WORLD, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda output, target: (output - target).sum())
    for _ in range(2):
        if RANK == 0:
            schedule.step(torch.randn(8, 8))
        else:
            schedule.step(target=torch.randn(8, 8))


def healthy_schedule() -> None:
    scheduled(None)


def stage_stuck() -> None:
    scheduled(7 if RANK == 1 else None)


# ---- expert ---------------------------------------------------------------------------------------------------------
def routed(tokens: list[int], expected: list[int]) -> None:
    dist.all_to_all_single(torch.empty(sum(expected)), torch.ones(sum(tokens)), expected, tokens)


def experts_skipped() -> None:
    """A rank without tokens does not exchange them."""
    for number in range(3):
        for _ in range(2):
            if not (RANK == 3 and number == 1):
                routed([1] * WORLD, [1] * WORLD)  # ROOT
        summed(5)
    dist.barrier()


def experts_disagree() -> None:
    """One rank expects what it got in the step before."""
    for number in range(3):
        counts = [number + 1] * WORLD
        stale = [number] * WORLD if RANK == 2 and number == 2 else counts
        routed(counts, stale)


# ---- context --------------------------------------------------------------------------------------------------------
def ring_send_missing() -> None:
    """In ring attention one rank keeps a block to itself in one round."""
    for number in range(3):
        block = torch.ones(4)
        exchange = [dist.P2POp(dist.irecv, torch.empty(4), (RANK - 1) % WORLD)]
        if not (RANK == 1 and number == 1):
            exchange.append(dist.P2POp(dist.isend, block, (RANK + 1) % WORLD))
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
    dist.barrier()


# ---- three dimensions -----------------------------------------------------------------------------------------------
def mesh_loader_stuck() -> None:
    mesh = three_dimensions()
    for number in range(4):
        if RANK == 5 and number == 2:
            next(iter(DataLoader(Samples(4, stuck=0))))
        mesh_step(mesh, number)


def mesh_call_missing() -> None:
    """One of two tensor-parallel ranks leaves a call out; three groups wait for one another in the end."""
    mesh = three_dimensions()
    for number in range(4):
        mesh_step(mesh, number, tensor_calls=2 if RANK == 6 and number == 2 else 3)


def mesh_rank_sleeps() -> None:
    """Four ranks in two dimensions: one rank of the second stage never begins its step."""
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("pp", "dp", "tp"))
    for number in range(3):
        if RANK == 3 and number == 1:
            time.sleep(FOREVER)  # ROOT
        mesh_step(mesh, number)


if __name__ == "__main__":
    start(globals())
