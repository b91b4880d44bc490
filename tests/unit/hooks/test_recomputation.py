"""How long activations are computed again in the backward."""

import time

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from distdiag import events
from tests.recordings import Recording

SLEEP = 0.03


class Slow(torch.nn.Linear):
    """A layer whose forward takes a while."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        time.sleep(SLEEP)
        return super().forward(input)


def train(*, reentrant: bool | None, steps: int = 2, nested: bool = False) -> None:
    """Train a layer; ``reentrant`` None computes nothing again."""
    layer = Slow(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)

    def again(batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = checkpoint(layer, batch, use_reentrant=False)
        return output

    for _ in range(steps):
        batch = torch.ones(2, 4, requires_grad=True)
        function = again if nested else layer
        output = layer(batch) if reentrant is None else checkpoint(function, batch, use_reentrant=reentrant)
        torch.autograd.backward(output.sum())
        optimizer.step()


def steps_of(recorded: Recording) -> list[events.Step]:
    return recorded.log.of(events.Step)


def test_the_time_is_part_of_the_backward(recorded: Recording) -> None:
    train(reentrant=False)

    for step in steps_of(recorded):
        assert step.recompute_ns is not None
        assert step.backward_ns is not None
        assert SLEEP * 1e9 <= step.recompute_ns <= step.backward_ns


def test_nested_recomputation_counts_once(recorded: Recording) -> None:
    train(reentrant=False, nested=True)

    for step in steps_of(recorded):
        assert step.recompute_ns is not None
        assert step.backward_ns is not None
        assert step.recompute_ns <= step.backward_ns


@pytest.mark.parametrize("reentrant", [None, True])
def test_without_it_and_where_it_cannot_be_told_apart_nothing_is_recorded(
    recorded: Recording, reentrant: bool | None
) -> None:
    train(reentrant=reentrant)

    assert [step.recompute_ns for step in steps_of(recorded)] == [None, None]
