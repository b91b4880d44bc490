"""Root forwards of the wrappers that make a model distributed, and the unit that a collective works for."""

import threading
from typing import Any

import torch.distributed
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.checkpoint import checkpoint

import distdiag
from distdiag import events
from tests.recordings import Recording, floats

dist: Any = torch.distributed
shard: Any = fully_shard
FullySharded: Any = FullyShardedDataParallel


class Blocks(nn.Module):
    """Two blocks, the second inside of a deeper module; perhaps recomputed in the backward."""

    def __init__(self, *, recomputed: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.deep = nn.Sequential(nn.Linear(4, 4))
        self.recomputed = recomputed

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        if self.recomputed:
            recompute: Any = checkpoint
            hidden = recompute(self.deep, hidden, use_reentrant=False)
        else:
            hidden = self.deep(hidden)
        total: torch.Tensor = hidden.sum()
        return total


def sharded(*, recomputed: bool = False) -> nn.Module:
    model = Blocks(recomputed=recomputed)
    for unit in (model.first, model.deep[0], model):
        shard(unit)
    return model


def counts(recorded: Recording) -> tuple[int | None, int | None]:
    """End a step and return how many forwards and backwards it had."""
    distdiag.step()
    step = recorded.log.of(events.Step)[-1]
    return step.forwards, step.backwards


def test_forward_of_ddp_is_counted(alone: Recording) -> None:
    model: Any = nn.parallel.DistributedDataParallel(Blocks())

    for _ in range(2):
        model(floats(2, 4)).backward()

    assert counts(alone) == (2, 2)


def test_forward_without_a_wrapper_is_not(alone: Recording) -> None:
    model: Any = Blocks()

    model(floats(2, 4)).backward()

    assert counts(alone) == (0, 1)


def test_forward_of_a_sharded_model_is_counted_once_for_all_its_units(alone: Recording) -> None:
    model: Any = sharded()

    for _ in range(2):
        model(floats(2, 4)).backward()

    assert counts(alone) == (2, 2)


def test_forward_that_is_recomputed_in_the_backward_is_no_further_one(alone: Recording) -> None:
    model: Any = sharded(recomputed=True)

    model(floats(2, 4)).backward()

    assert counts(alone) == (1, 1)


def test_forward_inside_a_forward_is_no_further_one(alone: Recording) -> None:
    inner = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    model: Any = nn.parallel.DistributedDataParallel(nn.Sequential(inner, nn.Linear(4, 1)))

    model(floats(2, 4))

    assert counts(alone)[0] == 1


def test_forward_of_another_thread_is_no_part_of_the_loop(alone: Recording) -> None:
    model: Any = nn.parallel.DistributedDataParallel(Blocks())
    worker = threading.Thread(target=model, args=(floats(2, 4),))
    worker.start()
    worker.join()

    assert counts(alone)[0] == 0


def test_forward_that_failed_does_not_shift_later_counts(alone: Recording) -> None:
    model: Any = nn.parallel.DistributedDataParallel(Blocks())
    try:
        model(floats(2, 5))
    except RuntimeError:
        distdiag.step()

    model(floats(2, 4))

    assert counts(alone)[0] == 1


def test_collectives_of_a_sharded_model_name_their_units(recorded: Recording) -> None:
    model: Any = sharded()

    model(floats(2, 4)).backward()

    gathered = [each.signature.module for each in recorded.log.issued("all_gather_into_tensor")]
    scattered = [each.signature.module for each in recorded.log.issued("reduce_scatter_tensor")]
    assert {"first", "deep.0"} <= set(gathered)
    assert {"first", "deep.0"} <= set(scattered)
    assert None not in gathered + scattered


def test_units_of_a_fully_sharded_model_are_named_by_their_first_parameter(recorded: Recording) -> None:
    model: Any = FullySharded(Blocks(), device_id=torch.device("cpu"))

    model(floats(2, 4)).backward()

    assert counts(recorded) == (1, 1)
    modules = {(each.op, each.signature.module) for each in recorded.log.issued() if each.call.forwards}
    assert modules == {("all_gather", "first.weight"), ("reduce_scatter_tensor", "first.weight")}


def test_calls_outside_of_units_have_no_module(recorded: Recording) -> None:
    model: Any = sharded()
    model(floats(2, 4)).backward()

    dist.barrier()

    assert recorded.the_call("barrier").signature.module is None
