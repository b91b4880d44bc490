"""Programs in which a rank comes later than the first of the others was willing to wait, and then goes on.

What the ranks look like in the end differs from what they did when the first of them gave up: whoever stood between
the late rank and that one has come out of its own wait by then. The line that is the root carries ROOT.
"""

import datetime
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import distdiag
from tests.faults.job import RANK, TIMEOUT, start, summed

LATE_AT = 2
STEPS = 4
LONGER = datetime.timedelta(seconds=60)
"""For groups whose members wait until the late one has come."""


class Slow(Dataset[torch.Tensor]):
    """A data set one of whose samples takes long, on some ranks."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == LATE_AT:
            time.sleep(self.seconds)
        return torch.ones(4)


def _steps(seconds: float = 0.0) -> Iterator[int]:
    """Yield the numbers of steps, each after its batch; one batch takes so long."""
    for number, _ in enumerate(DataLoader(Slow(seconds), batch_size=1)):
        yield number
        distdiag.step(number=number)


def _handed_down(late: float, busy: float) -> None:
    """A chain of messages from rank 2 over rank 1 to rank 0; rank 2 loads for ``late``, rank 1 works for ``busy``."""
    for number in _steps(late if RANK == 2 else 0.0):
        if RANK == 1 and number == LATE_AT:
            time.sleep(busy)
        if RANK < 2:
            dist.recv(torch.empty(4), RANK + 1)
        if RANK > 0:
            dist.send(torch.ones(4), RANK - 1)


def chain_late() -> None:
    """The first two give up one after the other, and the last one comes."""
    _handed_down(TIMEOUT.total_seconds() + 2, 0.0)


def chain_late_in_time_for_one() -> None:
    """The middle one gets its message when the first has given up already: then it is the one that is not heard."""
    _handed_down(TIMEOUT.total_seconds() + 1, 2.0)


def healthy_chain() -> None:
    _handed_down(1.5, 0.5)


def _over_groups(seconds: float) -> None:
    """Ranks 0 and 1 meet in one group, ranks 1 and 2 in another with a longer timeout."""
    tensor = dist.new_group([0, 1], timeout=TIMEOUT, group_desc="tp")
    data = dist.new_group([1, 2], timeout=LONGER, group_desc="dp")
    for _ in _steps(seconds if RANK == 2 else 0.0):
        if RANK > 0:
            summed(8, data)
        if RANK < 2:
            summed(16, tensor)


def groups_late() -> None:
    _over_groups(TIMEOUT.total_seconds() + 2)


def healthy_groups() -> None:
    _over_groups(1.5)


def sender_late() -> None:
    """A rank sends when its receiver has given up."""
    for number in range(STEPS):
        if RANK == 0:
            dist.recv(torch.empty(4), 1)
        elif RANK == 1:
            if number == LATE_AT:
                with distdiag.phase("tokenize"):
                    time.sleep(TIMEOUT.total_seconds() + 2)  # ROOT
            dist.send(torch.ones(4), 0)
        distdiag.step(number=number)


def two_late() -> None:
    """Two ranks, each late by itself, in one collective."""
    for _ in _steps({1: 1.5, 3: 2.5}[RANK] + TIMEOUT.total_seconds() if RANK in (1, 3) else 0.0):
        summed()


def two_senders_late() -> None:
    """Two pairs that have nothing to do with one another, and both senders are late."""
    for number in _steps({1: 1.0, 3: 2.5}[RANK] + TIMEOUT.total_seconds() if RANK in (1, 3) else 0.0):
        if number == LATE_AT and RANK == 2:
            time.sleep(0.5)
        if RANK in (0, 2):
            dist.recv(torch.empty(4), RANK + 1)
        else:
            dist.send(torch.ones(4), RANK - 1)


if __name__ == "__main__":
    start(globals())
