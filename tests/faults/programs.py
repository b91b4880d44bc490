"""Small programs that go wrong as real jobs do, and some that only look as if they did.

Started as one process per rank with the usual variables; the argument names the function. The line that is the root
cause carries the comment ROOT.
"""

import ctypes
import datetime
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.data import DataLoader, Dataset

import distdiag

TIMEOUT = datetime.timedelta(seconds=float(os.environ.get("PG_TIMEOUT", "4")))
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOREVER = 1000.0


def summed(size: int = 4, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    tensor = torch.ones(size)
    dist.all_reduce(tensor, group=group)
    return tensor


def model() -> nn.parallel.DistributedDataParallel:
    torch.manual_seed(0)
    return nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))


class Samples(Dataset[torch.Tensor]):
    """A data set whose sample ``stuck`` never comes."""

    def __init__(self, length: int, stuck: int | None = None) -> None:
        self.length, self.stuck = length, stuck

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.stuck:
            time.sleep(FOREVER)  # ROOT
        return torch.randn(8)


def loop(batches: DataLoader[torch.Tensor]) -> None:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        network(batch).sum().backward()
        optimizer.step()


def passes(count: int) -> Iterator[int]:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for number in range(count):
        optimizer.zero_grad()
        network(torch.randn(2, 8)).sum().backward()
        yield number
        optimizer.step()


def three_dimensions() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))


def mesh_step(mesh: DeviceMesh, number: int) -> None:
    """One step of a job in three dimensions: layers, a message to the next stage, gradients."""
    stage = mesh.get_local_rank("pp")
    pipeline = mesh.get_group("pp")
    partner = dist.get_global_rank(pipeline, 1 - stage)
    if stage == 1:
        dist.recv(torch.empty(4), partner, group=pipeline)
    for _ in range(3):
        summed(16, mesh.get_group("tp"))
    if stage == 0:
        dist.send(torch.ones(4), partner, group=pipeline)
    summed(64, mesh.get_group("dp"))
    distdiag.step(number=number)


# ---- healthy --------------------------------------------------------------------------------------------------------
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


# ---- somebody does not come -----------------------------------------------------------------------------------------
def mesh_loader_stuck() -> None:
    mesh = three_dimensions()
    for number in range(4):
        if RANK == 5 and number == 2:
            next(iter(DataLoader(Samples(4, stuck=0))))
        mesh_step(mesh, number)


def loader_stuck() -> None:
    loop(DataLoader(Samples(20, stuck=6 if RANK == 1 else None), batch_size=2))


def stage_computes() -> None:
    """The third stage of a chain computes and never hands on."""
    for number in range(3):
        if RANK > 0:
            dist.recv(torch.empty(4), RANK - 1)
        if RANK == 2 and number == 1:
            while True:
                torch.randn(64, 64).sum()  # ROOT
        if RANK < WORLD - 1:
            dist.send(torch.ones(4), RANK + 1)


def late_checkpoint() -> None:
    summed()
    if RANK == 0:
        with distdiag.phase("save checkpoint"):
            time.sleep(TIMEOUT.total_seconds() + 2)  # ROOT
    dist.barrier()


def stopped() -> None:
    for number in range(4):
        if RANK == 2 and number == 2:
            os.kill(os.getpid(), signal.SIGSTOP)  # ROOT
        summed()
        time.sleep(0.1)


def interpreter_held() -> None:
    for number in range(4):
        if RANK == 1 and number == 2:
            ctypes.PyDLL(None).sleep(1000)  # ROOT
        summed()


def early_exit() -> None:
    for number in range(5):
        if RANK == 1 and number == 3:
            sys.exit(0)  # ROOT
        summed()


# ---- calls that differ ----------------------------------------------------------------------------------------------
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


def shapes_differ() -> None:
    for number in range(3):
        size = 7 if RANK == 2 and number == 1 else 8
        summed(size)  # ROOT


def types_differ() -> None:
    summed()
    tensor = torch.ones(4, dtype=torch.float64 if RANK == 1 else torch.float32)
    dist.all_reduce(tensor)  # ROOT


def roots_differ() -> None:
    summed()
    source = 1 if RANK == 1 else 0
    dist.broadcast(torch.ones(4), src=source)  # ROOT


def ops_differ() -> None:
    summed()
    tensor = torch.ones(4)
    if RANK == 2:
        dist.reduce(tensor, dst=0)  # ROOT
    else:
        dist.all_reduce(tensor)
    dist.barrier()


def two_ranks_apart() -> None:
    summed()
    if RANK == 0:
        summed(2)  # ROOT
    dist.barrier()


def loaders_uneven() -> None:
    loop(DataLoader(Samples(8 if RANK == 2 else 10), batch_size=2))
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


# ---- deaths ---------------------------------------------------------------------------------------------------------
def raises() -> None:
    for number in range(5):
        summed()
        if RANK == 2 and number == 2:
            raise ValueError("bad sample 7")  # ROOT


def memory_error_caught() -> None:
    for number in passes(4):
        try:
            if RANK == 1 and number == 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")  # ROOT
            summed(3)
        except torch.OutOfMemoryError:
            pass
    dist.barrier()


def out_of_memory() -> None:
    for number in range(4):
        if RANK == 0 and number == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")  # ROOT
        summed()


def killed() -> None:
    for number in range(6):
        if RANK == 1 and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)  # ROOT
        summed()
        time.sleep(0.05)


def hard_exit() -> None:
    for number in range(4):
        if RANK == 1 and number == 2:
            os._exit(3)  # ROOT
        summed()


def terminated() -> None:
    for number in range(6):
        if RANK == 1 and number == 3:
            os.kill(os.getpid(), signal.SIGTERM)  # ROOT
        summed()


# ---- order ----------------------------------------------------------------------------------------------------------
def groups_swapped() -> None:
    groups = [dist.new_group(timeout=TIMEOUT) for _ in range(2)]
    for group in reversed(groups) if RANK == 2 else groups:
        summed(4, group)  # ROOT


def ring() -> None:
    """Every rank sends to the next before it receives."""
    dist.send(torch.ones(4), (RANK + 1) % WORLD)  # ROOT
    dist.recv(torch.empty(4), (RANK - 1) % WORLD)


def message_forgotten() -> None:
    if RANK == 0:
        dist.recv(torch.empty(4), 1)
    dist.barrier()  # ROOT


def guarded_group() -> None:
    summed()
    if RANK == 0:
        dist.new_group([0], timeout=TIMEOUT)  # ROOT
    summed()


def main() -> None:
    distdiag.install()
    torch.set_num_threads(1)
    # Ranks may start long after one another; only what they do then is short of time.
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, WORLD, RANK == 0, timeout=datetime.timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD, timeout=TIMEOUT)
    globals()[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
