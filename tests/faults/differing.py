"""Programs whose ranks do not issue the same calls, in the same order. The line that is the root carries ROOT."""

import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

from tests.faults.job import RANK, TIMEOUT, WORLD, Samples, loop, model, passes, start, summed


# ---- a call too many, or one left out -------------------------------------------------------------------------------
def guarded_gather() -> None:
    for number in passes(4):
        if number == 2 and RANK == 0:
            dist.all_gather_into_tensor(torch.empty(WORLD), torch.ones(1))  # ROOT
    dist.barrier()


def early_return() -> None:
    def log(metrics: dict[str, float]) -> None:
        if metrics:
            dist.all_gather_object([None] * WORLD, metrics)

    for number in passes(3):
        log({} if RANK == 2 and number == 1 else {"loss": 1.0})  # ROOT
    dist.barrier()


def silent_in_subgroup() -> None:
    """The extra call has the shape of the others; the stop comes calls later, in another function."""
    halves = [dist.new_group([0, 1, 2], timeout=TIMEOUT), dist.new_group([3], timeout=TIMEOUT)]
    if RANK < 3:
        for number in range(3):
            summed(4, halves[0])
            if RANK == 1 and number == 1:
                summed(4, halves[0])  # ROOT
            summed(4, halves[0])
        dist.barrier(group=halves[0])
    dist.barrier()


def two_ranks_apart() -> None:
    summed()
    if RANK == 0:
        summed(2)  # ROOT
    dist.barrier()


def evaluated_on_one() -> None:
    """Rank 0 alone evaluates, and its metrics are summed over all."""

    def evaluate() -> None:
        for batch in range(3):
            summed(1 + batch)

    for number in passes(4):
        if RANK == 0 and number == 1:
            evaluate()  # ROOT
    dist.barrier()


def clipped_on_one() -> None:
    """The norm is summed where the local one is too large."""
    for number in passes(4):
        if RANK == 1 and number == 2:
            dist.all_reduce(torch.ones(1))  # ROOT
    dist.barrier()


def stopped_early() -> None:
    """One rank's own loss has stopped falling, so it alone leaves the loop."""
    for number in passes(5):
        if RANK == 2 and number == 2:
            break  # ROOT
    summed(1)
    dist.barrier()


def objects_differ() -> None:
    summed()
    if RANK == 1:
        dist.broadcast_object_list([{"step": 1}], src=0)  # ROOT
    else:
        dist.all_gather_object([None] * WORLD, {"step": 1})
    dist.barrier()


def ops_differ() -> None:
    summed()
    tensor = torch.ones(4)
    if RANK == 2:
        dist.reduce(tensor, dst=0)  # ROOT
    else:
        dist.all_reduce(tensor)
    dist.barrier()


# ---- loops ----------------------------------------------------------------------------------------------------------
def loaders_uneven() -> None:
    loop(DataLoader(Samples(8 if RANK == 2 else 10), batch_size=2))
    dist.barrier()


def loops_uneven() -> None:
    """Nobody but the loop itself knows how long it is."""
    for _ in passes(5 if RANK == 1 else 4):
        pass
    dist.barrier()


def skipped_batch() -> None:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for number, batch in enumerate(DataLoader(Samples(10), batch_size=2)):
        if RANK == 1 and number == 2:
            continue  # ROOT
        optimizer.zero_grad()
        network(batch).sum().backward()
        optimizer.step()
    dist.barrier()


def overflow_skipped() -> None:
    """One rank's loss overflows at its scale, and it alone leaves the backward pass out."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for number, batch in enumerate(DataLoader(Samples(10), batch_size=2)):
        optimizer.zero_grad()
        loss = network(batch).sum() * (float("inf") if RANK == 1 and number == 2 else 1.0)
        if not torch.isfinite(loss):
            continue  # ROOT
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    dist.barrier()


# ---- arguments ------------------------------------------------------------------------------------------------------
def shapes_differ() -> None:
    for number in range(3):
        size = 7 if RANK == 2 and number == 1 else 8
        summed(size)  # ROOT


def gathered_shapes_differ() -> None:
    summed()
    part = torch.ones(3 if RANK == 1 else 4)
    dist.all_gather_into_tensor(torch.empty(len(part) * WORLD), part)  # ROOT


def types_differ() -> None:
    summed()
    tensor = torch.ones(4, dtype=torch.float64 if RANK == 1 else torch.float32)
    dist.all_reduce(tensor)  # ROOT


def roots_differ() -> None:
    summed()
    source = 1 if RANK == 1 else 0
    dist.broadcast(torch.ones(4), src=source)  # ROOT


def splits_differ() -> None:
    """One rank sends by a routing that the others do not know of."""
    summed()
    sends = [1, 3, 2] if RANK == 1 else [2, 2, 2]
    dist.all_to_all_single(torch.empty(6), torch.ones(6), [2, 2, 2], sends)  # ROOT


# ---- order and groups -----------------------------------------------------------------------------------------------
def groups_swapped() -> None:
    groups = [dist.new_group(timeout=TIMEOUT) for _ in range(2)]
    for group in reversed(groups) if RANK == 2 else groups:
        summed(4, group)  # ROOT


def threads_race() -> None:
    """A thread that writes checkpoints and the main thread use one group, and each rank has its own order."""
    summed()

    def background() -> None:
        time.sleep(1.0 if RANK == 0 else 0.0)
        dist.all_gather_object([None] * WORLD, "saved")  # ROOT

    thread = threading.Thread(target=background)
    thread.start()
    time.sleep(0.0 if RANK == 0 else 1.0)
    dist.barrier()
    thread.join()


def guarded_group() -> None:
    summed()
    if RANK == 0:
        dist.new_group([0], timeout=TIMEOUT)  # ROOT
    summed()


def members_alone() -> None:
    """Only those who belong to a group ask for it."""
    summed()
    if RANK != 2:
        dist.new_group([0, 1], timeout=TIMEOUT)  # ROOT
    summed()


def groups_listed_apart() -> None:
    """A set of groups has no order."""
    summed()
    pairs = [[0, 1], [2, 3]]
    for pair in reversed(pairs) if RANK == 3 else pairs:
        dist.new_group(pair, timeout=TIMEOUT)  # ROOT


def mesh_shapes_differ() -> None:
    """One rank's configuration says another division."""
    summed()
    init_device_mesh("cpu", (1, 4) if RANK == 1 else (2, 2), mesh_dim_names=("dp", "tp"))  # ROOT
    dist.barrier()


def group_after_sum() -> None:
    """One rank sums before it makes the group that the others make first."""
    summed()
    if RANK == 2:
        summed()  # ROOT
        dist.new_group(timeout=TIMEOUT)
    else:
        dist.new_group(timeout=TIMEOUT)
        summed()


# ---- messages -------------------------------------------------------------------------------------------------------
def ring() -> None:
    """Every rank sends to the next before it receives."""
    dist.send(torch.ones(4), (RANK + 1) % WORLD)  # ROOT
    dist.recv(torch.empty(4), (RANK - 1) % WORLD)


def both_receive() -> None:
    summed()
    dist.recv(torch.empty(4), 1 - RANK)  # ROOT
    dist.send(torch.ones(4), 1 - RANK)


def message_forgotten() -> None:
    if RANK == 0:
        dist.recv(torch.empty(4), 1)
    dist.barrier()  # ROOT


def tags_differ() -> None:
    """The tag counts micro-batches, and one side began to count at one."""
    summed()
    if RANK == 0:
        dist.send(torch.ones(4), 1, tag=0)  # ROOT
    if RANK == 1:
        dist.recv(torch.empty(4), 0, tag=1)
    dist.barrier()


if __name__ == "__main__":
    start(globals())
