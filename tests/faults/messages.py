"""Programs whose messages do not fit what their receivers make room for. The line that is the root carries ROOT."""

import torch
import torch.distributed as dist

from tests.faults.job import RANK, WORLD, start, summed

ROWS, WIDTH = 4, 16


def _chain(sent: torch.Tensor | None, room: torch.Tensor | None) -> None:
    """Hand a tensor from stage to stage."""
    if room is not None:
        dist.recv(room, RANK - 1)
    if sent is not None:
        dist.send(sent, RANK + 1)  # ROOT


def _handed_on(number: int, rows: int = ROWS, dtype: torch.dtype = torch.float32, *, stage: int = 1) -> None:
    """One micro-batch; a stage sends another size or type from the third on."""
    odd = stage == RANK and number >= 2
    sent = torch.ones(rows if odd else ROWS, WIDTH, dtype=dtype if odd else torch.float32)
    _chain(sent if RANK < WORLD - 1 else None, torch.empty(ROWS, WIDTH) if RANK else None)


def message_too_large() -> None:
    for number in range(5):
        _handed_on(number, 2 * ROWS)
    summed()


def message_too_small() -> None:
    for number in range(5):
        _handed_on(number, ROWS // 2)
    summed()


def first_message_too_large() -> None:
    """Nothing was sent before."""
    room = torch.empty(ROWS, WIDTH)
    _chain(torch.ones(2 * ROWS, WIDTH) if RANK == 0 else None, room if RANK == 1 else None)
    summed()


def message_of_other_type() -> None:
    """As many bytes, read as something else."""
    for number in range(5):
        _handed_on(number, dtype=torch.int32)
    summed()


def message_of_other_type_then_stuck() -> None:
    for number in range(5):
        _handed_on(number, dtype=torch.int32)
    if RANK == 1:
        raise ValueError("loss is nonsense")
    summed()


def half_as_wide_twice_as_many() -> None:
    for number in range(5):
        _handed_on(number, 2 * ROWS, torch.bfloat16)
    summed()


def batched_too_large() -> None:
    """Both directions at once, between two ranks."""
    other = 1 - RANK
    for number in range(4):
        sent = torch.ones(WIDTH * (2 if RANK == 0 and number == 2 else 1))
        room = torch.empty(WIDTH)
        ops = [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, room, other)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    summed()


def healthy_room_to_spare() -> None:
    """Senders tell the size first."""
    for number in range(4):
        rows = 1 + (number * 3) % 5
        if RANK:
            size = torch.empty(1, dtype=torch.int64)
            dist.recv(size, RANK - 1)
            dist.recv(torch.empty(int(size), WIDTH), RANK - 1)
        if RANK < WORLD - 1:
            dist.send(torch.tensor([rows]), RANK + 1)
            dist.send(torch.ones(rows, WIDTH), RANK + 1)
    summed()


def healthy_bytes() -> None:
    """What is sent as floats is received as the bytes that it consists of."""
    if RANK == 0:
        dist.send(torch.ones(8), 1)
        dist.send(torch.view_as_real(torch.ones(4, dtype=torch.complex64)), 1)
    if RANK == 1:
        dist.recv(torch.empty(32, dtype=torch.uint8), 0)
        dist.recv(torch.empty(4, dtype=torch.complex64), 0)
    summed()


if __name__ == "__main__":
    start(globals())
