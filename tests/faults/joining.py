"""Programs whose ranks do not meet: each joins the others by itself, one of them elsewhere or as somebody else.

What a launcher does wrong stands in the environment before recording begins, what a script does wrong comes after it.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

import distdiag
from tests.faults.job import FOREVER, RANK, STARTING, TIMEOUT, WORLD, all_here, summed

ADDRESS, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def _joined(**arguments: object) -> None:
    dist.init_process_group("gloo", timeout=TIMEOUT, **arguments)  # type: ignore[arg-type]  # many kinds of facts


# ---- what launchers do wrong ----------------------------------------------------------------------------------------
def launched_at_other_port() -> None:
    """The last host was given another port."""
    _joined()


def launched_at_other_address() -> None:
    """The last host takes itself for the master."""
    _joined()


def launched_each_alone() -> None:
    """Every process chose a free port of its own."""
    _joined()


def launched_in_halves() -> None:
    """Two of four were given another port."""
    _joined()


def launched_for_more() -> None:
    """One process was told of a larger world."""
    _joined()


def launched_for_fewer() -> None:
    """One process was told of a smaller world."""
    _joined()


def launched_twice() -> None:
    """Two processes were given one number."""
    _joined()


def launched_in_part() -> None:
    """One process never starts."""
    _joined()


def launched_beside_old() -> None:
    """A process of an earlier launch holds the port."""
    _joined()


ENVIRONMENTS: dict[str, Callable[[], dict[str, str]]] = {
    "launched_at_other_port": lambda: {"MASTER_PORT": str(PORT + 1)} if RANK == 3 else {},
    "launched_at_other_address": lambda: {"MASTER_ADDR": "192.0.2.1"} if RANK == 3 else {},
    "launched_each_alone": lambda: {"MASTER_PORT": str(PORT + RANK)},
    "launched_in_halves": lambda: {"MASTER_PORT": str(PORT + RANK // 2)},
    "launched_for_more": lambda: {"WORLD_SIZE": "6"} if RANK == 2 else {},
    "launched_for_fewer": lambda: {"WORLD_SIZE": "3"} if RANK == 1 else {},
    "launched_twice": lambda: {"RANK": "2"} if RANK == 3 else {},
}


# ---- what scripts do wrong ------------------------------------------------------------------------------------------
def meets_at_other_port() -> None:
    all_here()
    if RANK == 1:
        os.environ["MASTER_PORT"] = str(PORT + 1)
    _joined()


def names_other_file() -> None:
    all_here()
    path = Path("other" if RANK == 2 else "meeting").absolute()
    _joined(init_method=f"file://{path}", rank=RANK, world_size=WORLD)


def names_other_size() -> None:
    all_here()
    _joined(init_method=f"tcp://{ADDRESS}:{PORT}", rank=RANK, world_size=WORLD + (RANK == 3))


def names_same_number() -> None:
    """The number of the process on its host is taken for that in the job."""
    all_here()
    _joined(init_method=f"tcp://{ADDRESS}:{PORT}", rank=min(RANK, 2), world_size=WORLD)


def brings_other_store() -> None:
    all_here()
    store = TCPStore(ADDRESS, PORT + (RANK == 3), WORLD, RANK in (0, 3), timeout=STARTING, wait_for_workers=False)
    _joined(store=store, rank=RANK, world_size=WORLD)


def builds_other_store() -> None:
    """The store itself waits for all."""
    all_here()
    store = TCPStore(ADDRESS, PORT + (RANK == 3), WORLD, RANK in (0, 3), timeout=TIMEOUT)
    _joined(store=store, rank=RANK, world_size=WORLD)


def store_without_one() -> None:
    """One rank is elsewhere while the others make their store."""
    all_here()
    if RANK == 2:
        time.sleep(FOREVER)  # ROOT
    store = TCPStore(ADDRESS, PORT, WORLD, RANK == 0, timeout=TIMEOUT)
    _joined(store=store, rank=RANK, world_size=WORLD)


# ---- nothing wrong --------------------------------------------------------------------------------------------------
def healthy_joins_late() -> None:
    if RANK == 2:
        time.sleep(10)
    _joined()
    summed()


def healthy_permuted() -> None:
    """The script gives the numbers anew."""
    _joined(init_method=f"tcp://{ADDRESS}:{PORT}", rank=(RANK + 1) % WORLD, world_size=WORLD)
    for _ in range(3):
        summed()


def healthy_names() -> None:
    """One host under several names."""
    if RANK == 1:
        os.environ["MASTER_ADDR"] = "localhost"
    _joined()
    summed()


def healthy_subset() -> None:
    """Two worlds of two ranks each, which do not meet."""
    side = RANK // 2
    store = TCPStore(ADDRESS, PORT + side, 2, RANK % 2 == 0, timeout=STARTING)
    _joined(store=store, rank=RANK % 2, world_size=2)
    summed()


def _hold_port() -> None:
    """Be the process of an earlier launch."""
    server = TCPStore(ADDRESS, PORT, 4, True, timeout=STARTING, wait_for_workers=False)
    Path("held").touch()
    time.sleep(FOREVER)
    del server


def main() -> None:
    name = sys.argv[1]
    if name == "launched_in_part" and RANK == 2:
        return
    if name == "launched_beside_old":
        if RANK == 0 and os.fork() == 0:
            _hold_port()
        while not Path("held").exists():
            time.sleep(0.05)
    os.environ.update(ENVIRONMENTS.get(name, dict)())
    distdiag.install()
    torch.set_num_threads(1)
    globals()[name]()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
