"""Backward passes: counted, timed, and named as the place where the collectives in them come from."""

import threading
from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn

from distdiag import events
from tests.ranks import line_of
from tests.recordings import Recording, floats

dist: Any = torch.distributed


def loss_of(model: nn.Module) -> Any:
    return model(floats(3, 2)).sum()


def wrapped() -> nn.Module:
    return nn.parallel.DistributedDataParallel(nn.Linear(2, 1))


def test_reducer_of_ddp_comes_from_the_line_of_the_backward(alone: Recording) -> None:
    model = wrapped()

    def train() -> None:
        loss_of(model).backward()  # LINE backward

    train()

    assert alone.the_call("all_reduce").site == f"{line_of(__file__, 'backward')} train"


def test_backward_is_a_phase_that_ends(alone: Recording) -> None:
    model = wrapped()
    loss_of(model).backward()
    dist.barrier()

    phases = {each.op: (each.call.phase, each.call.backwards) for each in alone.log.issued("all_reduce", "barrier")}
    assert phases == {"all_reduce": ("backward", 1), "barrier": ("", 1)}


def test_backward_inside_a_backward_stays_one_phase(alone: Recording) -> None:
    inner: Any = floats(2).requires_grad_()

    class Reentrant(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, tensor: torch.Tensor) -> torch.Tensor:
            return tensor * 2

        @staticmethod
        def backward(_context: Any, *gradients: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inner.sum().backward()
            dist.all_reduce(gradients[0])
            return gradients[0]

    outer: Any = floats(2).requires_grad_()
    reentrant: Any = Reentrant.apply
    reentrant(outer).sum().backward()
    dist.barrier()

    phases = [(each.op, each.call.phase) for each in alone.log.issued("all_reduce", "barrier")]
    assert phases == [("all_reduce", "backward"), ("barrier", "")]


def test_backward_that_failed_leaves_its_phase(alone: Recording) -> None:
    loss = loss_of(wrapped())
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    dist.barrier()

    assert alone.the_call("barrier").call.phase == ""
    assert alone.the_call("barrier").call.backwards == 2


def test_backward_of_another_thread_is_no_part_of_the_loop(alone: Recording) -> None:
    model = nn.Linear(2, 1)
    worker = threading.Thread(target=lambda: loss_of(model).backward())
    worker.start()
    worker.join()
    dist.barrier()

    assert alone.the_call("barrier").call.backwards == 0
    assert alone.log.of(events.Fault) == []


def test_result_of_a_backward_is_what_it_is_without_recording(alone: Recording) -> None:
    weight: Any = floats(3).requires_grad_()

    torch.autograd.backward([(weight * 3).sum()])

    assert weight.grad.tolist() == [3, 3, 3]
