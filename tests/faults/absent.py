"""Programs in which a rank does not come, comes too late, or dies. The line that is the root carries ROOT."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import distdiag
from tests.faults.job import (
    FOREVER,
    RANK,
    STARTING,
    TIMEOUT,
    WORLD,
    Samples,
    all_here,
    layers,
    loop,
    passes,
    start,
    summed,
)


# ---- somebody does not come -----------------------------------------------------------------------------------------
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


def spins() -> None:
    """A rank waits for something that never becomes true, without a sleep."""
    for number in passes(4):
        while RANK == 1 and number == 2 and not Path("never").exists():
            pass  # ROOT
    dist.barrier()


def late_checkpoint() -> None:
    summed()
    if RANK == 0:
        with distdiag.phase("save checkpoint"):
            time.sleep(TIMEOUT.total_seconds() + 2)  # ROOT
    dist.barrier()


def saving_stuck() -> None:
    """A file system that does not answer: the file is a pipe that nobody reads."""
    time.sleep(1.5)  # as long as the first sign of life takes
    for number in passes(3):
        if number == 1 and RANK == 0:
            os.mkfifo("model.pt")
            torch.save(layers().state_dict(), "model.pt")  # ROOT
    dist.barrier()


def sharded_saving_stuck() -> None:
    """One rank's part of a distributed checkpoint does not get written."""
    from torch.distributed.checkpoint.state_dict_saver import save

    if RANK == 1:
        Path("checkpoint").mkdir()
        os.mkfifo("checkpoint/__1_0.distcp")
    dist.barrier()
    state = {f"weight{rank}": torch.ones(8) * rank for rank in range(WORLD)}
    save(state, checkpoint_id="checkpoint")  # ROOT


def compiling() -> None:
    """One rank's batch has another shape, so that it alone compiles once more, and that does not end."""
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> object:
        compiled.append(1)
        if len(compiled) > 1:
            time.sleep(FOREVER)  # ROOT
        return graph.forward

    step = torch.compile(torch.nn.Linear(8, 8), backend=backend, dynamic=False)
    for number in range(3):
        step(torch.randn(3 if RANK == 2 and number == 1 else 2, 8))
        summed()


def key_never_set() -> None:
    """A rank waits in the store for a key that nobody sets."""
    store = dist.distributed_c10d._get_default_store()
    for number in range(3):
        summed()
        if RANK == 1 and number == 1:
            store.wait(["dataset/ready"], STARTING)  # ROOT


def monitored() -> None:
    for number in range(3):
        if RANK == 2 and number == 2:
            time.sleep(FOREVER)  # ROOT
        dist.monitored_barrier(timeout=TIMEOUT)


def joining_late() -> None:
    """A rank that prepares its data before it joins the others' first group."""
    all_here()
    if RANK == 2:
        time.sleep(FOREVER)  # ROOT
    dist.init_process_group("gloo", timeout=TIMEOUT)


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
        time.sleep(1.0)


def early_exit() -> None:
    for number in range(5):
        if RANK == 1 and number == 3:
            sys.exit(0)  # ROOT
        summed()


# ---- deaths ---------------------------------------------------------------------------------------------------------
def raises() -> None:
    for number in range(5):
        summed()
        if RANK == 2 and number == 2:
            raise ValueError("bad sample 7")  # ROOT


def raises_unnoticed() -> None:
    """The others take the broken connection for the end of the job and leave quietly."""
    for number in range(5):
        if RANK == 1 and number == 2:
            raise KeyError("language")  # ROOT
        try:
            summed()
        except RuntimeError:
            sys.exit(0)


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


def host_memory() -> None:
    """The host has no room for what a rank asks for."""
    cache = []
    for number in range(4):
        if RANK == 1 and number == 2:
            cache.append(bytearray(1 << 60))  # ROOT
        summed()


class Heavy(Dataset[torch.Tensor]):
    """Its fourth sample needs more memory than the host has: the kernel kills the worker that loads it."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if RANK == 2 and index == 6:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(8)


def worker_killed() -> None:
    loop(DataLoader(Heavy(), batch_size=2, num_workers=1))


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


def hard_exit_without_code() -> None:
    for number in range(4):
        if RANK == 1 and number == 2:
            os._exit(0)  # ROOT
        summed()


def segmentation_fault() -> None:
    for number in range(4):
        if RANK == 2 and number == 2:
            ctypes.string_at(0)  # ROOT
        summed()


def terminated() -> None:
    for number in range(6):
        if RANK == 1 and number == 3:
            os.kill(os.getpid(), signal.SIGTERM)  # ROOT
        summed()


if __name__ == "__main__":
    start(globals())
