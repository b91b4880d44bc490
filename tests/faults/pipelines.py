"""Pipelines whose stages sleep instead of computing, so that they need no cores: schedules of PyTorch, and one by hand.

Variables say the rest: MICROBATCHES, CHUNKS (stages of each rank), REPLICAS (data-parallel copies of the pipeline),
STEPS, HEAVY (how much longer the last stage takes), FORWARD and BACKWARD (seconds for one micro-batch of a rank).
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tests.faults.job import RANK, WORLD, start
from tests.faults.slow import Sleeping


def _variable(name: str, otherwise: float) -> float:
    return float(os.environ.get(name, str(otherwise)))


MICROBATCHES = int(_variable("MICROBATCHES", 4))
CHUNKS = int(_variable("CHUNKS", 2))
REPLICAS = int(_variable("REPLICAS", 1))
STEPS = int(_variable("STEPS", 16))
HEAVY = _variable("HEAVY", 1.0)
FORWARD, BACKWARD = _variable("FORWARD", 0.005), _variable("BACKWARD", 0.010)
STAGES = WORLD // REPLICAS
STAGE, REPLICA = divmod(RANK, REPLICAS)
WIDTH = 8


class Stage(nn.Module):
    """A layer that takes its time in forward and in backward."""

    def __init__(self, chunks: int, *, last: bool, ring: Any = None) -> None:
        super().__init__()
        self.ring = ring
        torch.manual_seed(STAGE)
        self.linear = nn.Linear(WIDTH, WIDTH)
        longer = HEAVY if last else 1.0
        self.forward_seconds, self.backward_seconds = FORWARD * longer / chunks, BACKWARD * longer / chunks

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if self.ring is not None:
            _handed_round(self.ring)
        time.sleep(self.forward_seconds)
        slept: Any = Sleeping
        # After the layer: the first stage's input wants no gradient.
        result: torch.Tensor = slept.apply(self.linear(batch), self.backward_seconds)
        return result


def _handed_round(group: Any) -> None:
    """Give keys and values to the next rank of a ring until they are back, as in context parallelism."""
    ranks = dist.get_process_group_ranks(group)
    place, block = ranks.index(RANK), torch.ones(WIDTH)
    for _ in ranks[1:]:
        received = torch.empty(WIDTH)
        sends = dist.P2POp(dist.isend, block, ranks[(place + 1) % len(ranks)], group)
        receives = dist.P2POp(dist.irecv, received, ranks[place - 1], group)
        for work in dist.batch_isend_irecv([sends, receives]):
            work.wait()
        block = received


def _back(output: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
    engine: Any = torch.autograd
    engine.backward(output, gradient)


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).pow(2).mean()


def _groups(copies: str = "dp") -> tuple[Any, Any]:
    """Make the groups of all pipelines, and of all stages; return those of this rank."""
    if REPLICAS == 1:
        return None, None
    mesh = init_device_mesh("cpu", (STAGES, REPLICAS), mesh_dim_names=("pp", copies))
    return mesh.get_group("pp"), mesh.get_group(copies)


def _steps(modules: list[nn.Module], replicas: Any) -> Iterator[None]:
    """Yield at the beginning of each step, and end it with the mean of gradients and the optimizer."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.001)
    for _ in range(STEPS):
        optimizer.zero_grad()
        yield
        if replicas is not None:
            for parameter in parameters:
                dist.all_reduce(parameter.grad, group=replicas)
        optimizer.step()


def _scheduled(schedule: Any, chunks: int = 1, *, folded: bool = False, rings: bool = False) -> None:
    """Run a schedule of PyTorch; ``folded`` stages go down the ranks and up again, as in a V.

    With ``rings`` the copies of a stage share one sequence and exchange parts of it.
    """
    from torch.distributed.pipelining import PipelineStage

    pipeline, replicas = _groups("cp" if rings else "dp")
    numbers = [STAGE, 2 * STAGES - 1 - STAGE] if folded else [chunk * STAGES + STAGE for chunk in range(chunks)]
    last = chunks * STAGES - 1 in numbers
    modules: list[nn.Module] = [Stage(chunks, last=last, ring=replicas if rings else None) for _ in numbers]
    stages = [
        PipelineStage(module, number, chunks * STAGES, torch.device("cpu"), group=pipeline)
        for number, module in zip(numbers, modules, strict=True)
    ]
    held: Any = stages if chunks > 1 else stages[0]
    running = schedule(held, MICROBATCHES, loss_fn=_loss)
    for _ in _steps(modules, replicas):
        inputs = [torch.randn(MICROBATCHES, WIDTH)] if 0 in numbers else []
        target = {"target": torch.randn(MICROBATCHES, WIDTH)} if chunks * STAGES - 1 in numbers else {}
        running.step(*inputs, **target)


def gpipe() -> None:
    from torch.distributed.pipelining import ScheduleGPipe

    _scheduled(ScheduleGPipe)


def one_forward_one_backward() -> None:
    from torch.distributed.pipelining import Schedule1F1B

    _scheduled(Schedule1F1B)


def beside_rings() -> None:
    """Stages that exchange parts of their sequences among their ranks, in groups of their own."""
    from torch.distributed.pipelining import Schedule1F1B

    _scheduled(Schedule1F1B, rings=True)


def interleaved() -> None:
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    _scheduled(ScheduleInterleaved1F1B, CHUNKS)


def looped() -> None:
    """All forwards before all backwards, on stages that are interleaved."""
    from torch.distributed.pipelining import ScheduleLoopedBFS

    _scheduled(ScheduleLoopedBFS, CHUNKS)


def zero_bubble() -> None:
    """Backwards are split: what the stage before needs first, gradients of weights when there is time."""
    from torch.distributed.pipelining import ScheduleInterleavedZeroBubble

    _scheduled(ScheduleInterleavedZeroBubble, CHUNKS)


def zero_bubble_v() -> None:
    from torch.distributed.pipelining import ScheduleZBVZeroBubble

    _scheduled(ScheduleZBVZeroBubble, 2, folded=True)


def dual_pipe_v() -> None:
    from torch.distributed.pipelining import ScheduleDualPipeV

    _scheduled(ScheduleDualPipeV, 2, folded=True)


# ---- by hand --------------------------------------------------------------------------------------------------------
class Neighbours:
    """Exchanges with the stages before and after this one, what goes both ways in one batch."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._before = RANK - REPLICAS if STAGE else None
        self._after = RANK + REPLICAS if STAGE < STAGES - 1 else None

    def forward_in(self) -> torch.Tensor | None:
        return self._exchange(None, None, self._before)

    def forward_out(self, output: torch.Tensor) -> None:
        self._exchange(output, self._after, None)

    def backward_in(self) -> torch.Tensor | None:
        return self._exchange(None, None, self._after)

    def backward_out(self, gradient: torch.Tensor | None) -> None:
        self._exchange(gradient, self._before, None)

    def forward_out_backward_in(self, output: torch.Tensor) -> torch.Tensor | None:
        return self._exchange(output, self._after, self._after)

    def backward_out_forward_in(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return self._exchange(gradient, self._before, self._before)

    def _exchange(self, sent: torch.Tensor | None, to: int | None, source: int | None) -> torch.Tensor | None:
        received = None if source is None else torch.empty(1, WIDTH)
        operations = []
        if to is not None and sent is not None:
            operations.append(dist.P2POp(dist.isend, sent.detach(), to, self._group))
        if source is not None and received is not None:
            operations.append(dist.P2POp(dist.irecv, received, source, self._group))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return received


def by_hand() -> None:
    """1F1B as Megatron writes it: warm-up, then one forward and one backward by turns, then the backwards left."""
    pipeline, replicas = _groups()
    module = Stage(1, last=STAGE == STAGES - 1)
    near = Neighbours(pipeline)
    warm_up = min(STAGES - 1 - STAGE, MICROBATCHES)
    for _ in _steps([module], replicas):
        held: list[tuple[torch.Tensor | None, torch.Tensor]] = []
        for _ in range(warm_up):
            held.append(_forward(module, near.forward_in()))
            near.forward_out(held[-1][1])
        arrived = near.forward_in() if warm_up < MICROBATCHES else None
        for number in range(MICROBATCHES - warm_up):
            held.append(_forward(module, arrived))
            gradient = near.forward_out_backward_in(held[-1][1])
            gradient = _backward(*held.pop(0), gradient)
            if number < MICROBATCHES - warm_up - 1:
                arrived = near.backward_out_forward_in(gradient)
            else:
                near.backward_out(gradient)
        for each in held:
            near.backward_out(_backward(*each, near.backward_in()))


def _forward(module: nn.Module, arrived: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor]:
    if arrived is None:
        return None, module(torch.randn(1, WIDTH).requires_grad_())
    arrived.requires_grad_()
    return arrived, module(arrived)


def _backward(arrived: torch.Tensor | None, output: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None:
        _back(_loss(output, torch.zeros_like(output)))
    else:
        _back(output, gradient)
    return None if arrived is None else arrived.grad


if __name__ == "__main__":
    start(globals())
