"""Healthy programs that only look as if something were wrong with them."""

import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader

from tests.faults.job import (
    RANK,
    TIMEOUT,
    WORLD,
    Samples,
    layers,
    loop,
    mesh_step,
    model,
    passes,
    start,
    summed,
    three_dimensions,
)


def healthy_mesh() -> None:
    mesh = three_dimensions()
    for number in range(4):
        mesh_step(mesh, number)


def healthy_evaluation() -> None:
    """Evaluation with different batch counts and no collectives, one late step, a leader that logs."""
    for number in passes(4):
        if number == 1:
            time.sleep(0.5 * RANK)
        for _ in range(RANK):
            torch.randn(8, 8).sum()
        if number % WORLD == RANK:
            dist.broadcast(torch.ones(1), src=RANK)
        else:
            dist.broadcast(torch.ones(1), src=number % WORLD)


def healthy_thread() -> None:
    """A side thread with a group of its own, and an error that is caught."""
    own = dist.new_group(timeout=TIMEOUT)

    def background() -> None:
        for _ in range(5):
            summed(2, own)

    thread = threading.Thread(target=background)
    thread.start()
    for _ in range(5):
        try:
            raise KeyError("not cached")
        except KeyError:
            summed()
    thread.join()


def healthy_members() -> None:
    """The same members in another order are the same group, and some groups are made by their members alone."""
    pair = dist.new_group([0, 1, 2] if RANK == 1 else [2, 1, 0], timeout=TIMEOUT)
    summed(4, pair)
    if RANK < 2:
        summed(4, dist.new_group([0, 1], timeout=TIMEOUT, use_local_synchronization=True))
    summed()


def healthy_join() -> None:
    """Ranks with fewer batches shadow the calls of those with more."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    with Join([network]):
        for _ in range(3 + RANK):
            optimizer.zero_grad()
            network(torch.randn(2, 8)).sum().backward()
            optimizer.step()


def healthy_loader() -> None:
    """Workers load the batches; rank 0 alone writes a checkpoint of its own, and the others wait for it."""
    loop(DataLoader(Samples(12), batch_size=2, num_workers=1))
    if RANK == 0:
        torch.save(layers().state_dict(), "model.pt")
        time.sleep(1.0)
    dist.barrier()


def healthy_sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    network = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for unit in network:
        fully_shard(unit)
    fully_shard(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.randn(2, 8)).sum().backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()


def healthy_ring() -> None:
    """Keys and values go round, as in context parallelism; each rank is busy for a different time."""
    for number in range(4):
        block = torch.ones(4)
        sends = dist.P2POp(dist.isend, block, (RANK + 1) % WORLD)
        receives = dist.P2POp(dist.irecv, torch.empty(4), (RANK - 1) % WORLD)
        for work in dist.batch_isend_irecv([sends, receives] if RANK % 2 else [receives, sends]):
            work.wait()
        time.sleep(0.1 * ((RANK + number) % WORLD))


def healthy_metrics() -> None:
    """Many metrics are reduced in one line, most by sums; some become maxima later. Rank 0 makes calls of its own."""
    alone = [dist.new_group([rank], timeout=TIMEOUT) for rank in range(WORLD)][RANK]
    always = [dist.ReduceOp.SUM] * 5 + [dist.ReduceOp.MAX] * 2
    for number in passes(40):
        if RANK == 0:
            summed(1, alone)
        for kind in always:
            dist.all_reduce(torch.ones(1), op=kind)
        for _ in range(4):
            dist.all_reduce(torch.ones(1), op=dist.ReduceOp.SUM if number < 20 else dist.ReduceOp.MAX)


def goes_on() -> None:
    """A job that is looked at while it runs."""
    for _ in passes(10_000):
        time.sleep(0.05)


if __name__ == "__main__":
    start(globals())
