"""Pipelines one of whose stages runs more or fewer micro-batches than the others. Nothing of them computes."""

import torch
import torch.distributed as dist
from torch import nn

import distdiag
from tests.faults.job import RANK, WORLD, start

WIDTH = 8
USUAL = 5
FIRST, LAST = RANK == 0, RANK == WORLD - 1


def _forward_in() -> None:
    if not FIRST:
        dist.recv(torch.empty(WIDTH), RANK - 1)


def _forward_out() -> None:
    if not LAST:
        dist.send(torch.ones(WIDTH), RANK + 1)


def _backward_in() -> None:
    if not LAST:
        dist.recv(torch.empty(WIDTH), RANK + 1)


def _backward_out() -> None:
    if not FIRST:
        dist.send(torch.ones(WIDTH), RANK - 1)


def _all_forwards_first(count: int) -> None:
    for _ in range(count):
        _forward_in()
        _forward_out()
    for _ in range(count):
        _backward_in()
        _backward_out()


def _at_once(to: int | None, source: int | None) -> None:
    """Send and receive in one batch, as schedules do where both are due."""
    operations = [dist.P2POp(dist.isend, torch.ones(WIDTH), to)] if to is not None else []
    if source is not None:
        operations.append(dist.P2POp(dist.irecv, torch.empty(WIDTH), source))
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()


def _by_turns(count: int) -> None:
    """One forward, one backward, after a warm-up that is the longer the earlier the stage."""
    before, after = None if FIRST else RANK - 1, None if LAST else RANK + 1
    warm_up = min(WORLD - 1 - RANK, count)
    for _ in range(warm_up):
        _at_once(None, before)
        _at_once(after, None)
    if count > warm_up:
        _at_once(None, before)
    for number in range(count - warm_up):
        _at_once(after, after)
        _at_once(before, before if number < count - warm_up - 1 else None)
    for _ in range(warm_up):
        _at_once(None, after)
        _at_once(before, None)


def _steps(schedule: object, counts: dict[int, int], *, since: int = 2) -> None:
    """Run some steps, from one of them on with other counts on some ranks."""
    for number in range(5):
        count = counts.get(RANK, USUAL) if number >= since else USUAL
        schedule(count)  # type: ignore[operator]
        distdiag.step(number=number)


def stage_leaves_one_out() -> None:
    _steps(_all_forwards_first, {1: USUAL - 1})


def stage_has_one_more() -> None:
    _steps(_all_forwards_first, {2: USUAL + 1})


def first_stage_has_one_more() -> None:
    _steps(_all_forwards_first, {0: USUAL + 1})


def last_stage_leaves_one_out() -> None:
    _steps(_all_forwards_first, {3: USUAL - 1})


def stage_by_turns_leaves_one_out() -> None:
    _steps(_by_turns, {2: USUAL - 1})


def stage_by_turns_has_one_more() -> None:
    _steps(_by_turns, {1: USUAL + 1})


def stage_of_three_leaves_one_out() -> None:
    """Nobody else does what it does: it has two neighbours."""
    _steps(_all_forwards_first, {1: USUAL - 1}, since=0)


def stages_of_two_differ() -> None:
    _steps(_all_forwards_first, {1: USUAL - 1})


def halves_differ() -> None:
    _steps(_all_forwards_first, {2: USUAL - 1, 3: USUAL - 1})


def _scheduled(name: str, count: int, batch: int) -> None:
    from torch.distributed import pipelining

    torch.manual_seed(RANK)
    module = nn.Linear(WIDTH, WIDTH)
    stage = pipelining.PipelineStage(module, RANK, WORLD, torch.device("cpu"))
    schedule = getattr(pipelining, name)(stage, count, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        inputs = [torch.randn(batch, WIDTH)] if FIRST else []
        targets = {"target": torch.randn(batch, WIDTH)} if LAST else {}
        schedule.step(*inputs, **targets)
        optimizer.step()


def schedule_has_one_more() -> None:
    """The stages were given different numbers, and the batch was made to fit."""
    count = USUAL + (RANK == 1)
    _scheduled("ScheduleGPipe", count, 2 * count)


def schedule_by_turns_leaves_one_out() -> None:
    count = USUAL - (RANK == 2)
    _scheduled("Schedule1F1B", count, 2 * count)


def healthy_counts() -> None:
    """Every step has as many micro-batches as its data, on all stages."""
    for number, count in enumerate((4, 2, 5, 1, 3)):
        _by_turns(count)
        distdiag.step(number=number)


if __name__ == "__main__":
    start(globals())
