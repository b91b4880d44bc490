"""Training as people write it, unlike the textbooks: slow now and then, wrong without a word, or well and only odd.

Started as one process per rank with the usual variables; the argument names the function.
"""

import gc
import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DataLoader, IterableDataset, Sampler, WeightedRandomSampler

from tests.faults.job import RANK, WORLD, start
from tests.faults.silent import Job, Pairs, layers
from tests.faults.slow import BRIEF, LONG, Model, same, trained

OFTEN = 60


# ---- slow -----------------------------------------------------------------------------------------------------------
def evaluated_on_one() -> None:
    """The first rank evaluates every few steps, and the others wait in a barrier."""
    model = Model()
    model.forward_seconds = BRIEF
    for number in trained(model, same(steps=OFTEN)):
        if number % 5 == 4:
            if RANK == 0:
                with torch.no_grad():
                    for _ in range(15):
                        model(torch.randn(2, 8))
            dist.barrier()


def throttled() -> None:
    """One rank becomes slow in the middle of the run."""
    model = Model()
    for number in trained(model, same(steps=50)):
        model.forward_seconds = 1.5 * LONG if RANK == 1 and number >= 24 else BRIEF


def slow_host() -> None:
    """Two ranks of four are slow, alike."""
    model = Model()
    model.forward_seconds = LONG if RANK in (1, 2) else BRIEF
    for _ in trained(model, same()):
        pass


def new_shapes() -> None:
    """A new shape in each step: it is compiled anew, and what the compiler leaves behind is collected."""
    torch._dynamo.config.recompile_limit = 100
    compiled = torch.compile(nn.Linear(8, 8), backend="aot_eager", dynamic=False)
    network = nn.parallel.DistributedDataParallel(compiled)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for rows in range(2, 22):
        network(torch.randn(rows, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- wrong ----------------------------------------------------------------------------------------------------------
class Stream(IterableDataset[torch.Tensor]):
    """Samples that come one after the other, all of them or every one in so many."""

    def __init__(self, first: int, step: int) -> None:
        self.first, self.step = first, step

    def __iter__(self) -> Iterator[torch.Tensor]:
        data = Pairs(160)
        return (data[index][0] for index in range(self.first, 160, self.step))


def stream_undivided() -> None:
    job = Job()
    for sample in DataLoader(Stream(0, 1), batch_size=4):
        job.step(sample)


def workers_undivided() -> None:
    """Ranks divide the stream, their workers do not."""
    job = Job()
    for sample in DataLoader(Stream(RANK, WORLD), batch_size=4, num_workers=2):
        job.step(sample)


def divided_and_apart() -> None:
    """The optimizer's state is divided, gradients are never averaged, and replicas are equal all the same."""
    job = Job()
    optimizer: Any = ZeroRedundancyOptimizer(job.model.parameters(), torch.optim.AdamW, lr=0.01)
    for _ in range(8):
        with job.model.no_sync():
            job.loss(job.sample()).backward()
        optimizer.step()
        optimizer.zero_grad()


def redrawn() -> None:
    """Some steps after the first ones each rank draws the weights of a layer anew."""
    job = Job()
    for number in range(10):
        job.step()
        if number == 5:
            torch.manual_seed(RANK)
            nn.init.normal_(job.model.module[2].weight)


def layer_added() -> None:
    """A layer that the model gets after it was wrapped is trained, and its gradients are not averaged."""
    model = layers()
    job = Job(model)
    torch.manual_seed(0)
    model.append(nn.Linear(1, 1))
    job.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(6):
        job.step()


def _with_head(seed: int) -> None:
    """Train a wrapped trunk and a head outside the wrapper, whose weights are drawn from a seed."""
    torch.manual_seed(0)
    trunk = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    torch.manual_seed(seed)
    head = nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.05)
    numbers = torch.Generator().manual_seed(RANK)
    for _ in range(6):
        head(trunk(torch.randn(4, 8, generator=numbers))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def head_outside() -> None:
    """Mentioned, and no more: it could be meant so."""
    _with_head(seed=0)


def value_in_shards() -> None:
    model: Any = layers()
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number in range(8):
        sample = torch.randn(4, 8)
        if RANK == 1 and number == 5:
            sample[0, 0] = float("nan")
        model(sample).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _replicated_shards(seed: int) -> None:
    """Two replicas of a model, each in two shards, and weights from a seed."""
    torch.manual_seed(seed)
    model: Any = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    numbers = torch.Generator().manual_seed(RANK)
    for _ in range(6):
        model(torch.randn(4, 8, generator=numbers)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def shards_seeded_apart() -> None:
    _replicated_shards(RANK)


# ---- well -----------------------------------------------------------------------------------------------------------
class Endless(Sampler[int]):
    """Goes through one shuffled order after another, the same on all ranks, and takes every one in so many."""

    def __iter__(self) -> Iterator[int]:
        numbers = torch.Generator().manual_seed(9)
        orders = (torch.randperm(101, generator=numbers).tolist() for _ in itertools.count())
        return itertools.islice(itertools.chain.from_iterable(orders), RANK, 320 * WORLD, WORLD)


def healthy_endless() -> None:
    job = Job()
    for sample, _ in DataLoader(Pairs(101), batch_size=4, sampler=Endless()):
        job.step(sample)


def healthy_weighted() -> None:
    """Each rank draws with replacement, from a seed of its own."""
    numbers = torch.Generator().manual_seed(RANK)
    drawn = WeightedRandomSampler(torch.rand(240).tolist(), 160, generator=numbers)
    job = Job()
    for sample, _ in DataLoader(Pairs(240), batch_size=4, sampler=drawn):
        job.step(sample)


def healthy_replicated_shards() -> None:
    _replicated_shards(0)


def healthy_own_head() -> None:
    _with_head(seed=RANK)


def healthy_local_steps() -> None:
    """Weights, not gradients, are averaged, every few steps."""
    job = Job()
    for number in range(24):
        job.model.module(job.sample()).square().mean().backward()
        job.update()
        if number % 4 == 3:
            for parameter in job.model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= WORLD


def healthy_logs() -> None:
    """One rank writes a log now and then, and all collect garbage in the same steps."""
    gc.collect()
    gc.freeze()
    model = Model()
    model.forward_seconds = 2 * BRIEF
    for number in trained(model, same(steps=OFTEN)):
        if number % 10 == 9:
            gc.collect()
            if RANK == 0:
                time.sleep(2 * BRIEF)


if __name__ == "__main__":
    start(globals())
