"""What the fault programs have in common: their ranks, the beginning and the end of a job, small pieces of training.

A program is started as one process per rank with the usual variables; its argument names the function to run.
"""

import datetime
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
STARTING = datetime.timedelta(seconds=60)
"""Ranks may start long after one another; only what they do then is short of time."""


def summed(size: int = 4, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    tensor = torch.ones(size)
    dist.all_reduce(tensor, group=group)
    return tensor


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def model() -> nn.parallel.DistributedDataParallel:
    return nn.parallel.DistributedDataParallel(layers())


class Samples(Dataset[torch.Tensor]):
    """A data set whose sample ``stuck`` never comes."""

    def __init__(self, length: int, stuck: int | None = None) -> None:
        self.length, self.stuck = length, stuck

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.stuck:
            time.sleep(FOREVER)
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


def mesh_step(mesh: DeviceMesh, number: int, *, tensor_calls: int = 3) -> None:
    """One step of a job in three dimensions: layers, a message to the next stage, gradients."""
    stage = mesh.get_local_rank("pp")
    pipeline = mesh.get_group("pp")
    partner = dist.get_global_rank(pipeline, 1 - stage)
    if stage == 1:
        dist.recv(torch.empty(4), partner, group=pipeline)
    for _ in range(tensor_calls):
        summed(16, mesh.get_group("tp"))
    if stage == 0:
        dist.send(torch.ones(4), partner, group=pipeline)
    summed(64, mesh.get_group("dp"))
    distdiag.step(number=number)


def joined() -> None:
    """Make the world's group."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, WORLD, RANK == 0, timeout=STARTING)
    all_here()
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD, timeout=TIMEOUT)


def all_here() -> None:
    """Wait until all ranks have come so far, without their store or their group."""
    Path(f"{RANK}.here").touch()
    while len(list(Path().glob("*.here"))) < WORLD:
        time.sleep(0.05)


def start(programs: Mapping[str, Any]) -> None:
    """Run the program that the command line names, on this rank of its job; some join it themselves."""
    distdiag.install()
    torch.set_num_threads(1)
    if not sys.argv[1].startswith("joining_"):
        joined()
    programs[sys.argv[1]]()
    dist.barrier()
    dist.destroy_process_group()
