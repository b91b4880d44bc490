"""Programs that end well and are wrong: numbers, replicas, samples and memory.

Started as one process per rank with the usual variables; the argument names the function.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, Sampler

from tests.faults.job import RANK, start

WATCHING_MODULES = ("value_in_layer",)
"""Programs that record the first module from the start."""


class Pairs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples with labels; the same index is the same sample on every rank."""

    def __init__(self, length: int, seed: int = 0) -> None:
        self.length, self.seed = length, seed

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.Generator().manual_seed(1000 * self.seed + index)
        sample = torch.randn(8, generator=numbers)
        return sample, sample.sum()


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


class Job:
    """A replica with its optimizer, on samples of its rank's own."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = DistributedDataParallel(layers() if model is None else model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.numbers = torch.Generator().manual_seed(100 + RANK)

    def sample(self) -> torch.Tensor:
        return torch.randn(8, 8, generator=self.numbers)

    def loss(self, sample: torch.Tensor) -> Any:
        return (self.model(sample).squeeze(-1) - sample.sum(-1)).square().mean()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, sample: torch.Tensor | None = None) -> None:
        self.loss(self.sample() if sample is None else sample).backward()
        self.update()


# ---- values that are not finite -------------------------------------------------------------------------------------
def value_in_input() -> None:
    job = Job()
    for number in range(7):
        sample = job.sample()
        if RANK == 1 and number == 4:
            sample[2, 3] = float("nan")
        job.step(sample)


class Logarithm(nn.Module):
    """Right as long as what it is given is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = 2.0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (values + self.shift).log()


def value_in_layer() -> None:
    layer = Logarithm()
    torch.manual_seed(0)
    job = Job(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), layer, nn.Linear(16, 1)))
    for number in range(6):
        layer.shift = -2.0 if RANK == 2 and number == 3 else 2.0
        job.step()


def value_in_backward() -> None:
    """The square root of zero is in order, its derivative is not."""
    job = Job()
    for number in range(6):
        loss = job.loss(job.sample())
        if RANK == 0 and number == 3:
            loss = loss + (job.model.module[0].weight.sum() * 0).sqrt()
        loss.backward()
        job.update()


def value_left_out() -> None:
    """The scaler leaves out the steps with a bad batch; the second time the module is known."""
    job = Job()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for number in range(9):
        sample = job.sample()
        if RANK == 1 and number in (3, 5):
            sample[0, 0] = float("inf")
        scaler.scale(job.loss(sample)).backward()
        scaler.step(job.optimizer)
        scaler.update()
        job.optimizer.zero_grad()


# ---- losses ---------------------------------------------------------------------------------------------------------
def spike() -> None:
    job = Job()
    for number in range(40):
        job.step(job.sample() * (30.0 if number == 32 else 1.0))


def spike_of_one() -> None:
    job = Job()
    for number in range(40):
        job.step(job.sample() * (30.0 if number == 32 and RANK == 2 else 1.0))


# ---- replicas -------------------------------------------------------------------------------------------------------
def scales_differ() -> None:
    job = Job()
    scaler = torch.amp.GradScaler("cpu", init_scale=2048.0 if RANK == 1 else 1024.0)
    for _ in range(6):
        scaler.scale(job.loss(job.sample())).backward()
        scaler.step(job.optimizer)
        scaler.update()
        job.optimizer.zero_grad()


def never_averaged() -> None:
    job = Job()
    for _ in range(8):
        with job.model.no_sync():
            job.loss(job.sample()).backward()
        job.update()


def last_pass_alone() -> None:
    """Accumulation with the wrong way round: averaged first, and not at the end; the loss is averaged for a log."""
    job = Job()
    for _ in range(6):
        job.loss(job.sample()).backward()
        with job.model.no_sync():
            loss = job.loss(job.sample())
            loss.backward()
        dist.all_reduce(loss.detach())
        job.update()


def wrapper_bypassed() -> None:
    job = Job()
    for number in range(8):
        sample = job.sample()
        model = job.model if number < 2 else job.model.module
        (model(sample).squeeze(-1) - sample.sum(-1)).square().mean().backward()
        job.update()


def flipped_bit() -> None:
    job = Job()
    for number in range(8):
        job.step()
        if RANK == 2 and number == 2:
            job.model.module[2].weight.data.view(torch.int32)[0, 5] ^= 1


def rates_differ() -> None:
    job = Job()
    job.optimizer.param_groups[0]["lr"] = 0.04 if RANK == 0 else 0.05
    for _ in range(6):
        job.step()


# ---- samples --------------------------------------------------------------------------------------------------------
def _averaged_by_hand(*, flat: bool) -> None:
    """Train weights that each rank drew from a seed of its own, and average the gradients without a wrapper."""
    torch.manual_seed(RANK)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(6):
        model(torch.randn(8, 8)).square().mean().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if flat:
            whole: Any = torch.cat([gradient.view(-1) for gradient in gradients])
            dist.all_reduce(whole)
            for gradient, part in zip(gradients, whole.split([each.numel() for each in gradients]), strict=True):
                gradient.copy_((part / dist.get_world_size()).view_as(gradient))
        else:
            for gradient in gradients:
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()


def seeded_apart() -> None:
    _averaged_by_hand(flat=False)


def seeded_apart_flat() -> None:
    _averaged_by_hand(flat=True)


def _epochs(sampler: Callable[[Pairs], Sampler[int]], epochs: int = 1) -> None:
    data = Pairs(240)
    job = Job()
    loader = DataLoader(data, batch_size=4, sampler=sampler(data))
    for _ in range(epochs):
        for sample, _ in loader:
            job.step(sample)


def same_shuffle() -> None:
    """Every rank draws the same order, for it has the same seed."""
    torch.manual_seed(7)
    _epochs(RandomSampler)


def own_shuffles() -> None:
    """Every rank goes through the whole data set, in an order of its own."""
    _epochs(lambda data: RandomSampler(data, generator=torch.Generator().manual_seed(RANK)))


def same_share() -> None:
    """Ranks 0 and 1 take the same share."""
    _epochs(lambda data: DistributedSampler(data, num_replicas=3, rank=max(0, RANK - 1)))


def seeds_differ() -> None:
    _epochs(lambda data: DistributedSampler(data, seed=5 if RANK == 2 else 0))


def one_more_batch() -> None:
    job = Job()
    for sample, _ in DataLoader(Pairs(44 if RANK == 1 else 40, seed=RANK), batch_size=4):
        job.step(sample)
    dist.barrier()


# ---- memory ---------------------------------------------------------------------------------------------------------
def leak() -> None:
    """One rank keeps a megabyte of each step."""
    job = Job()
    kept = []
    for _ in range(120):
        job.step()
        if RANK == 1:
            kept.append(torch.ones(1 << 18))
        time.sleep(0.03)


if __name__ == "__main__":
    if sys.argv[1] in WATCHING_MODULES:
        os.environ["DISTDIAG_NUMERICS"] = "modules"
    start(globals())
