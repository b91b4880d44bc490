"""Healthy training of many kinds, in which numbers, replicas, samples and memory only look suspicious.

Started as one process per rank with the usual variables; the argument names the function.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import distdiag
from tests.faults.job import RANK, WORLD, start
from tests.faults.silent import Job, Pairs, layers


def healthy_plain() -> None:
    job = Job()
    for _ in range(30):
        job.step()


def healthy_accumulation() -> None:
    job = Job()
    for _ in range(6):
        for _ in range(2):
            with job.model.no_sync():
                job.loss(job.sample()).backward()
        job.step()


def healthy_scaler() -> None:
    """A scaler that begins far too high leaves out its first steps, on all ranks."""
    job = Job()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    for _ in range(12):
        scaler.scale(job.loss(job.sample())).backward()
        scaler.unscale_(job.optimizer)
        nn.utils.clip_grad_norm_(job.model.parameters(), 1.0)
        scaler.step(job.optimizer)
        scaler.update()
        job.optimizer.zero_grad()


def healthy_zero() -> None:
    """The optimizer's state is divided, and updated parameters are broadcast after its step."""
    job = Job()
    optimizer: Any = ZeroRedundancyOptimizer(job.model.parameters(), torch.optim.AdamW, lr=0.01)
    for _ in range(6):
        job.loss(job.sample()).backward()
        optimizer.step()
        optimizer.zero_grad()


def healthy_norm() -> None:
    """Running statistics differ between ranks, parameters do not."""
    torch.manual_seed(0)
    job = Job(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1)))
    torch.manual_seed(RANK)
    for _ in range(6):
        job.step()


def healthy_unused() -> None:
    """Some parameters have gradients in some steps only."""

    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.arms = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])

        def forward(self, sample: torch.Tensor, arm: int) -> torch.Tensor:
            output: torch.Tensor = self.arms[arm](sample)
            return output

    model = DistributedDataParallel(Either(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(8):
        model(torch.randn(4, 8), (number + RANK) % 2).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def healthy_compressed() -> None:
    job = Job()
    job.model.register_comm_hook(None, fp16_compress_hook)
    for _ in range(6):
        job.step()


def healthy_averaged_by_hand() -> None:
    """Gradients are averaged once, after all passes, by the script itself."""
    job = Job()
    for _ in range(6):
        for _ in range(2):
            with job.model.no_sync():
                job.loss(job.sample()).backward()
        flat: Any = torch.cat([p.grad.view(-1) for p in job.model.parameters() if p.grad is not None])
        dist.all_reduce(flat)
        for p, part in zip(
            job.model.parameters(), flat.split([p.numel() for p in job.model.parameters()]), strict=True
        ):
            p.grad = (part / WORLD).view_as(p)
        job.update()


def healthy_own_heads() -> None:
    """Ranks share a trunk, whose gradients they average by hand, and have each a head of their own."""
    trunk = layers()
    torch.manual_seed(RANK)
    head = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.05)
    for _ in range(6):
        head(trunk(torch.randn(4, 8))).square().mean().backward()
        for parameter in trunk.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


def healthy_elastic() -> None:
    """Each rank is drawn to a common centre and keeps weights of its own; what is summed has the gradients' shapes."""
    torch.manual_seed(RANK)
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    centre = [torch.zeros_like(parameter) for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(6):
        model(torch.randn(4, 8)).square().mean().backward()
        for parameter, middle in zip(model.parameters(), centre, strict=True):
            drawn = (parameter.detach() - middle) * 0.1
            parameter.data -= drawn
            dist.all_reduce(drawn)
            middle += drawn
        optimizer.step()
        optimizer.zero_grad()


def healthy_own_shares() -> None:
    """Each rank updates a part of the parameters, with shapes as the others' have, and gives it to them."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(WORLD)))
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(model[RANK].parameters(), lr=0.05)
    for _ in range(6):
        model(torch.randn(4, 8)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        model.zero_grad()
        for owner, part in enumerate(model):
            for parameter in part.parameters():
                dist.broadcast(parameter.data, src=owner)


def healthy_two_models() -> None:
    """A generator and a critic take turns, each with an optimizer of its own."""
    torch.manual_seed(0)
    generator, critic = Job(nn.Linear(8, 8)), Job()
    for _ in range(6):
        critic.model(generator.model(generator.sample()).detach()).mean().backward()
        critic.update()
        generator.model(generator.sample()).square().mean().backward()
        generator.update()


def healthy_frozen() -> None:
    model = layers()
    model[0].requires_grad_(False)
    job = Job(model)
    for _ in range(6):
        job.step()


def healthy_sharded() -> None:
    """Each rank holds another part of the parameters."""
    from torch.distributed.fsdp import fully_shard

    model: Any = layers()
    for unit in (model[0], model[2]):
        fully_shard(unit)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(6):
        model(torch.randn(4, 8)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def healthy_tensor_parallel() -> None:
    """Two by two: tensor-parallel peers have the same samples, data-parallel ones have not."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = layers()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    replicas = mesh.get_group("dp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = Pairs(96)
    sampler: Any = DistributedSampler(data, num_replicas=2, rank=mesh.get_local_rank("dp"))
    for sample, _ in DataLoader(data, batch_size=4, sampler=sampler):
        model(sample).square().mean().backward()
        for parameter in model.parameters():
            gradient: Any = parameter.grad
            dist.all_reduce(getattr(gradient, "_local_tensor", gradient), group=replicas)
        optimizer.step()
        optimizer.zero_grad()


def healthy_context_parallel() -> None:
    """All ranks share a batch and hand keys and values round; gradients are averaged over all of them."""
    context = dist.new_group()
    job = Job()
    for sample, _ in DataLoader(Pairs(64), batch_size=4):
        parts = [torch.empty(4, 8) for _ in range(WORLD)]
        dist.all_gather(parts, sample, group=context)
        job.step(sample)


def healthy_sampler() -> None:
    job = Job()
    data = Pairs(121)
    sampler: Any = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for sample, _ in loader:
            job.step(sample)


def healthy_shares() -> None:
    """Each rank numbers the samples of its own share from zero."""
    job = Job()
    for sample, _ in DataLoader(Pairs(80, seed=RANK + 1), batch_size=4):
        job.step(sample)


def healthy_evaluation() -> None:
    """Between epochs every rank evaluates on the same samples."""
    job = Job()
    for epoch in range(2):
        for sample, _ in DataLoader(Pairs(48, seed=2 + 10 * epoch + RANK), batch_size=4):
            job.step(sample)
        with torch.no_grad():
            for sample, _ in DataLoader(Pairs(60, seed=1), batch_size=4):
                job.model.module(sample)
        dist.barrier()


class Stream(IterableDataset[torch.Tensor]):
    """Samples without ids."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        numbers = torch.Generator().manual_seed(RANK)
        return iter([torch.randn(8, generator=numbers) for _ in range(80)])


def healthy_stream() -> None:
    job = Job()
    for sample in DataLoader(Stream(), batch_size=4):
        job.step(sample)


def healthy_noise() -> None:
    """Losses of a batch of one scatter over orders of magnitude."""
    job = Job()
    for _ in range(150):
        job.step(torch.randn(1, 8, generator=job.numbers) * torch.randn((), generator=job.numbers).exp())


def healthy_cache() -> None:
    """A cache grows until it is full."""
    job = Job()
    kept = []
    for number in range(80):
        job.step()
        if number < 15:
            kept.append(torch.ones(1 << 20))
        time.sleep(0.03)


def healthy_losses_said() -> None:
    """The script says its own loss, averaged over all ranks, and a learning rate that warms up and falls."""
    job = Job()
    schedule = torch.optim.lr_scheduler.OneCycleLR(job.optimizer, max_lr=0.05, total_steps=40)
    for _ in range(40):
        loss = job.loss(job.sample())
        loss.backward()
        job.update()
        schedule.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        distdiag.step(loss=mean / WORLD, lr=schedule.get_last_lr()[0])


def healthy_masks() -> None:
    """Infinities inside a model are nothing bad: a mask is made of them."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(8, 8)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            scores = self.project(values) @ values.T
            mask = torch.triu(torch.full(scores.shape, float("-inf")), 1)
            mixed: torch.Tensor = (scores + mask).softmax(-1) @ values
            return mixed

    torch.manual_seed(0)
    job = Job(nn.Sequential(Attention(), nn.Linear(8, 1)))
    for _ in range(6):
        job.step()


if __name__ == "__main__":
    start(globals())
