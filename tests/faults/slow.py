"""Programs that train slowly: one rank, all ranks, another rank each step, a link; and busy ones that are well."""

import gc
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn import functional as exchanged
from torch.utils.data import DataLoader, Dataset

import distdiag
from tests.faults.hosts import move_to_own_host
from tests.faults.job import RANK, WORLD, start, summed

STEPS = 40
BRIEF, LONG = 0.01, 0.05
"""What every rank sleeps in a step, and what a slow one does, in seconds."""


class Sleeping(torch.autograd.Function):
    """Passes its input on, and sleeps when the gradient comes back."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(context.seconds)  # ROOT
        return gradients[0], None


class Model(nn.Module):
    """Two layers that take some time in forward and in backward."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(size, size), nn.Linear(size, size)
        self.forward_seconds = self.backward_seconds = 0.0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(self.forward_seconds)
        slept: Any = Sleeping
        hidden = slept.apply(self.first(batch), self.backward_seconds)
        loss: torch.Tensor = self.second(hidden).pow(2).mean()
        return loss


class Reads(Dataset[torch.Tensor]):
    """Samples that take some time to read."""

    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.randn(8)


def trained(model: Model, batches: Any, replicas: dist.ProcessGroup | None = None) -> Iterator[int]:
    """Train on batches; yield after each step."""
    network = nn.parallel.DistributedDataParallel(model, process_group=replicas)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for number, batch in enumerate(batches):
        optimizer.zero_grad()
        network(batch).backward()
        optimizer.step()
        yield number


def same(size: int = 8, rows: int = 2, steps: int = STEPS) -> Iterator[torch.Tensor]:
    return (torch.randn(rows, size) for _ in range(steps))


# ---- one rank -------------------------------------------------------------------------------------------------------
def slow_backward() -> None:
    """All backwards look equally long: the others' wait in it for the gradients of the slow one."""
    model = Model()
    model.forward_seconds, model.backward_seconds = BRIEF, LONG if RANK == 1 else BRIEF
    for _ in trained(model, same()):
        pass


def slow_forward() -> None:
    model = Model()
    model.forward_seconds = LONG if RANK == 2 else BRIEF
    for _ in trained(model, same()):
        pass


def slow_reading() -> None:
    for _ in trained(Model(), DataLoader(Reads(STEPS, LONG if RANK == 2 else BRIEF), batch_size=1)):
        pass


def one_saves() -> None:
    """The first rank writes the whole model every few steps; the others wait."""
    model = Model()
    model.forward_seconds = BRIEF
    for number in trained(model, same()):
        if number % 5 == 4 and RANK == 0:
            with distdiag.phase("save checkpoint"):
                time.sleep(3 * LONG)  # ROOT


def last_stage() -> None:
    """The last stage of a pipeline takes 1.6 times as long as the others."""
    os.environ.update(HEAVY="1.6", MICROBATCHES="8", FORWARD="0.008", BACKWARD="0.016")
    from tests.faults.pipelines import one_forward_one_backward

    one_forward_one_backward()


# ---- a link ---------------------------------------------------------------------------------------------------------
OF_SLOW_LINK = WORLD - 1
"""The rank whose host has a slow cable."""
SLOW_MEGABITS = 200


def slow_link() -> None:
    """A model has replicas on pairs of hosts, and nobody is late: the gradients of one pair take long."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, WORLD, 2)]
    model = Model(512)
    model.forward_seconds = BRIEF
    for _ in trained(model, same(512), pairs[RANK // 2]):
        summed(1)


# ---- experts --------------------------------------------------------------------------------------------------------
TOKENS = 64
"""Of each rank in each step."""
TOKEN_SECONDS = 0.0004
"""What an expert takes for one token, forward and backward each."""
PREFERRED = 4.0
"""How many times as often as the others the gate chooses the preferred expert."""


def routed(tokens: torch.Tensor, to: list[int], arriving: list[int]) -> torch.Tensor:
    """Exchange tokens between experts; gradients go the way back."""
    exchange: Any = exchanged.all_to_all_single
    result: torch.Tensor = exchange(tokens.new_empty(sum(arriving), tokens.shape[1]), tokens, arriving, to)
    return result


def experts(preferred: Iterator[int], times: float = PREFERRED) -> None:
    """Each rank holds an expert, to which all ranks send the tokens that their gate chooses it for."""
    torch.manual_seed(RANK)
    gate, expert = nn.Linear(8, 8), nn.Linear(8, 8)
    optimizer = torch.optim.SGD([*gate.parameters(), *expert.parameters()], lr=0.01)
    slept: Any = Sleeping
    for chosen in preferred:
        time.sleep(BRIEF)
        weights = torch.ones(WORLD)
        weights[chosen] = times
        counts = torch.multinomial(weights, TOKENS, replacement=True).bincount(minlength=WORLD)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        to, arrived = counts.tolist(), arriving.tolist()
        seconds = TOKEN_SECONDS * sum(arrived)
        tokens = routed(gate(torch.randn(TOKENS, 8)), to, arrived)
        time.sleep(seconds)
        output: Any = routed(slept.apply(expert(tokens), seconds), arrived, to)
        output.pow(2).mean().backward()
        for parameter in gate.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


def uneven_experts() -> None:
    """The gate prefers one expert."""
    experts(iter([2] * STEPS))


def moving_experts() -> None:
    """The gate prefers another expert in each step."""
    experts(number * 7 // 3 % WORLD for number in range(STEPS))


def healthy_experts() -> None:
    """The gate treats all alike, as far as chance does."""
    experts(iter([2] * STEPS), times=1.0)


# ---- all ranks ------------------------------------------------------------------------------------------------------
def slow_data() -> None:
    for _ in trained(Model(), DataLoader(Reads(STEPS, LONG), batch_size=1)):
        pass


def uneven_lengths() -> None:
    """Work grows with the square of the lengths; another rank is the slowest each step."""
    model = Model()
    generator = torch.Generator().manual_seed(RANK)
    lengths: list[list[int]] = torch.randint(10, 80, (STEPS, 4), generator=generator).tolist()

    def batches() -> Iterator[torch.Tensor]:
        for each in lengths:
            model.forward_seconds = sum(length**2 for length in each) / 200_000
            yield torch.randn(2, 8)

    for number in trained(model, batches()):
        distdiag.step(lengths=lengths[number])


# ---- healthy --------------------------------------------------------------------------------------------------------
def healthy_work() -> None:
    """All ranks compute, more of them than there are cores."""
    for _ in trained(Model(256), same(256, 512)):
        pass


def healthy_collections() -> None:
    """Ranks collect garbage at different times, seldom."""
    gc.collect()
    gc.freeze()
    for number in trained(Model(256), same(256, 512)):
        if number % 20 == 6 * RANK + 3:
            gc.collect()


def healthy_hiccup() -> None:
    """A single long step, and a checkpoint that all write."""
    model = Model()
    model.forward_seconds = 2 * BRIEF
    for number in trained(model, same()):
        if number == 20 and RANK == 1:
            time.sleep(0.5)
        if number == 30:
            with distdiag.phase("save checkpoint"):
                time.sleep(LONG)


def healthy_metrics() -> None:
    """Two metrics are reduced in the background; one rank hands in the second a step later, for which nobody waits."""
    group = dist.new_group()
    pending: deque[Any] = deque()

    def reduce_metric() -> None:
        pending.append(dist.all_reduce(torch.ones(4), group=group, async_op=True))

    for number in trained(Model(), same()):
        for second in (False, True):
            if RANK != 1 or number or not second:
                reduce_metric()
        summed(1)
        while len(pending) > 8:
            pending.popleft().wait()
        time.sleep(LONG)
    if RANK == 1:
        reduce_metric()
    for work in pending:
        work.wait()


# ---- for the ledger -------------------------------------------------------------------------------------------------
class SleepingSGD(torch.optim.SGD):
    seconds = 0.0

    def step(self, closure: Any = None) -> Any:
        time.sleep(self.seconds)
        return super().step(closure)


def every_other_step() -> None:
    """In every second step each part of it sleeps as long as its variable says, in milliseconds; rank 0 never."""
    seconds = {part: float(os.environ.get(f"SLEEP_{part.upper()}", "0")) / 1000 for part in PARTS}
    model, reads = Model(), Reads(STEPS, 0.0)
    network = nn.parallel.DistributedDataParallel(model)
    optimizer = SleepingSGD(network.parameters(), lr=0.01)
    batches = iter(DataLoader(reads, batch_size=1))
    for number in range(STEPS):
        asleep = {part: duration * (number % 2) * (RANK > 0) for part, duration in seconds.items()}
        reads.seconds, model.forward_seconds = asleep["data"], asleep["forward"]
        model.backward_seconds, optimizer.seconds = asleep["backward"], asleep["optimizer"]
        time.sleep(asleep["other"])
        with distdiag.phase("save checkpoint"):
            time.sleep(asleep["checkpoint"])
        batch = next(batches)
        optimizer.zero_grad()
        network(batch).backward()
        optimizer.step()


PARTS = ("data", "forward", "backward", "optimizer", "checkpoint", "other")

if __name__ == "__main__":
    if sys.argv[1] == "slow_link":
        move_to_own_host(RANK, WORLD, slow=OF_SLOW_LINK, megabits=SLOW_MEGABITS)
    start(globals())
