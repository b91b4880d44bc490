"""Plain torch, six steps each: ``torch_parallel.py ddp | fsdp2 | tensor | pipeline | zero | compiled``."""

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.frameworks.stalling import Samples

STEPS = 6


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 8)
        self.wide = nn.Linear(8, 32)
        self.narrow = nn.Linear(32, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.narrow(torch.relu(self.wide(self.embed(tokens))))
        return hidden


def train(model: nn.Module, optimizer: torch.optim.Optimizer, *, same_samples: bool = False) -> None:
    samples = Samples(STEPS * 4)
    sampler: DistributedSampler[dict[str, torch.Tensor]] | None = None if same_samples else DistributedSampler(samples)
    for batch in DataLoader(samples, batch_size=4 if same_samples else 2, sampler=sampler):
        loss = model(batch["input_ids"]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp() -> None:
    model = DistributedDataParallel(Layers())
    train(model, torch.optim.SGD(model.parameters(), 0.1))


def compiled() -> None:
    model = DistributedDataParallel(Layers())
    model.compile(backend="eager")
    train(model, torch.optim.SGD(model.parameters(), 0.1))


def fsdp2() -> None:
    model = Layers()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in (model.wide, model.narrow, model):
        fully_shard(unit, mesh=mesh)
    train(model, torch.optim.AdamW(model.parameters()))


def tensor() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = parallelize_module(Layers(), mesh, {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
    train(model, torch.optim.SGD(model.parameters(), 0.1, foreach=False), same_samples=True)


def zero() -> None:
    model = DistributedDataParallel(Layers())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1))


def pipeline() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    part = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 8)) if rank == 0 else nn.Linear(8, 8)
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = torch.optim.SGD(part.parameters(), 0.1)
    for batch in DataLoader(Samples(STEPS * 4), batch_size=4):
        if rank == 0:
            schedule.step(batch["input_ids"])
        else:
            schedule.step(target=torch.zeros(4, 16, 8))
        optimizer.step()
        optimizer.zero_grad()


WAYS: dict[str, Callable[[], None]] = {each.__name__: each for each in (ddp, compiled, fsdp2, tensor, zero, pipeline)}

if __name__ == "__main__":
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    WAYS[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()
