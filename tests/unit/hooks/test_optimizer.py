"""Steps as optimizers end them, and what a user says about them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn

import distdiag
from distdiag import events
from distdiag.errors import RAISE_OWN_ERRORS
from tests.recordings import Recording, floats, lonely_world, recording

dist: Any = torch.distributed


class Training:
    """A model, its optimizer and the parts of a step."""

    def __init__(self, optimizer: Any = None) -> None:
        self.model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
        self.optimizer: Any = optimizer or torch.optim.SGD(self.model.parameters(), lr=0.1)

    def backward(self) -> None:
        loss: Any = self.model(floats(3, 2)).sum()
        loss.backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()


def steps(made: Recording) -> list[events.Step]:
    return made.log.of(events.Step)


def test_optimizer_ends_a_step(alone: Recording) -> None:
    training = Training()

    for _ in range(3):
        training.step()

    assert [each.step for each in steps(alone)] == [0, 1, 2]
    assert [(each.forwards, each.backwards) for each in steps(alone)] == [(1, 1)] * 3


def test_steps_follow_one_another_without_a_gap(alone: Recording) -> None:
    training = Training()

    for _ in range(3):
        training.step()

    first, second, third = steps(alone)
    assert first.end_ns == second.start_ns
    assert second.end_ns == third.start_ns


def test_parts_of_a_step_add_up_to_no_more_than_the_step(alone: Recording) -> None:
    training = Training()

    for _ in range(3):
        training.step()

    for step in steps(alone):
        assert step.start_ns is not None
        assert step.end_ns is not None
        parts = (step.data_ns, step.forward_ns, step.backward_ns, step.optimizer_ns)
        assert all(part is not None and part > 0 for part in parts[1:])
        assert sum(part or 0 for part in parts) <= step.end_ns - step.start_ns


def test_accumulated_gradients_are_counted(alone: Recording) -> None:
    training = Training()

    for _ in range(2):
        for _ in range(4):
            training.backward()
        training.optimizer.step()

    assert [(each.forwards, each.backwards) for each in steps(alone)] == [(4, 4)] * 2
    reduced = [(each.call.step, each.call.backwards) for each in alone.log.issued("all_reduce")]
    assert reduced == [(step, backward) for step in range(2) for backward in range(1, 5)]


def test_calls_carry_step_and_phase(alone: Recording) -> None:
    training = Training()

    for _ in range(2):
        training.step()
    dist.barrier()

    placed = [(each.op, each.call.step, each.call.phase) for each in alone.log.issued("all_reduce", "barrier")]
    assert placed == [("all_reduce", 0, "backward"), ("all_reduce", 1, "backward"), ("barrier", 2, "")]


def test_optimizer_without_a_forward_or_backward_ends_no_step(alone: Recording) -> None:
    training = Training()
    training.step()

    training.optimizer.step()
    training.optimizer.step()

    assert len(steps(alone)) == 1


def test_optimizers_that_follow_one_another_end_one_step(alone: Recording) -> None:
    training = Training()
    other: Any = torch.optim.SGD([nn.Parameter(floats(1))], lr=0.1)

    for _ in range(2):
        training.step()
        other.step()

    assert [each.step for each in steps(alone)] == [0, 1]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_nested_optimizers_end_one_step(tmp_path: Path) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with recording(tmp_path) as made, lonely_world():
        training = Training()
        zero: Any = ZeroRedundancyOptimizer
        training.optimizer = zero(training.model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
        for _ in range(3):
            training.step()

    assert [(each.step, each.forwards) for each in steps(made)] == [(0, 1), (1, 1), (2, 1)]


def test_closure_of_an_optimizer_belongs_to_its_step(alone: Recording) -> None:
    training = Training()
    training.optimizer = torch.optim.LBFGS(training.model.parameters(), max_iter=2)

    def closure() -> Any:
        training.optimizer.zero_grad()
        loss: Any = training.model(floats(3, 2)).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        training.optimizer.step(closure)

    assert [each.step for each in steps(alone)] == [0, 1]
    assert all(each.backwards and each.backwards >= 1 for each in steps(alone))


def test_optimizer_that_failed_does_not_shift_later_steps(alone: Recording) -> None:
    training = Training()
    broken: Any = torch.optim.SGD([nn.Parameter(floats(1))], lr=0.1)
    broken.param_groups[0]["params"] = None

    training.backward()
    with pytest.raises(TypeError):
        broken.step()
    for _ in range(2):
        training.step()

    assert [(each.step, each.backwards) for each in steps(alone)] == [(0, 2), (1, 1)]


def test_step_sums_up_the_calls_that_ended_in_it(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        training = Training()
        group = dist.group.WORLD.group_name
        training.step()
        for _ in range(3):
            dist.all_reduce(floats(10))
        training.step()

    sums = steps(made)[1].rollups[f"{group}/all_reduce"]
    waited = [each for each in made.log.issued("all_reduce") if each.signature.shapes == [[10]]]
    assert sums["calls"] == 3 + 1
    assert sums["bytes"] == 3 * 40 + 12
    assert sums["duration_ns"] >= sum(each.seconds for each in waited) * 1e9 - 1
    assert 0 < sums["wait_ns"] <= sums["duration_ns"]
    assert steps(made)[1].calls == made.log.issued()[-1].call.call


def test_memory_is_sampled_with_the_steps(alone: Recording) -> None:
    training = Training()

    training.step()

    assert [each.step for each in alone.log.of(events.Memory)] == [0]


# ---- what the user says ------------------------------------------------------------------------------------------
def test_facts_said_right_after_the_optimizer_belong_to_its_step(alone: Recording) -> None:
    training = Training()

    for number in range(2):
        training.step()
        distdiag.step(tokens=100 + number, loss=0.5)

    facts = [(each.step, each.facts) for each in steps(alone) if each.facts]
    assert facts == [(0, {"tokens": 100, "loss": 0.5}), (1, {"tokens": 101, "loss": 0.5})]
    assert [each.step for each in steps(alone) if each.end_ns] == [0, 1]


def test_step_said_after_further_calls_ends_a_step_of_its_own(alone: Recording) -> None:
    training = Training()

    training.step()
    dist.barrier()
    distdiag.step(loss=1.0)

    assert [(each.step, each.facts) for each in steps(alone)] == [(0, {}), (1, {"loss": 1.0})]


def test_loop_without_an_optimizer_has_the_steps_that_are_said(alone: Recording) -> None:
    for number in range(3):
        dist.barrier()
        distdiag.step(samples=number)

    assert [(each.step, each.facts["samples"]) for each in steps(alone)] == [(0, 0), (1, 1), (2, 2)]
    assert [each.call.step for each in alone.log.issued()] == [0, 1, 2]


def test_facts_that_json_cannot_hold_are_told_in_words(alone: Recording) -> None:
    distdiag.step(loss=torch.tensor(2.5), grad_norm=float("nan"), rates=(0.1, 0.2), model=nn.Linear(1, 1))

    (step,) = steps(alone)
    assert step.facts == {"loss": 2.5, "grad_norm": "nan", "rates": [0.1, 0.2], "model": "<Linear>"}


def test_tensor_that_would_have_to_be_fetched_from_a_device_is_not_read(alone: Recording) -> None:
    distdiag.step(loss=torch.tensor(1.0, device="meta"), weights=floats(3))

    assert steps(alone)[0].facts == {"loss": "<Tensor>", "weights": "<Tensor>"}


def test_phase_of_the_user_names_the_calls_in_it(alone: Recording) -> None:
    with distdiag.phase("save"):
        dist.barrier()
        with distdiag.phase("upload"):
            dist.barrier()
        dist.barrier()
    dist.barrier()

    assert [each.call.phase for each in alone.log.issued()] == ["save", "upload", "save", ""]
    edges = [(each.phase, each.edge) for each in alone.log.of(events.Phase) if each.phase in ("save", "upload")]
    assert edges == [("save", "begin"), ("upload", "begin"), ("upload", "end"), ("save", "end")]


def test_phase_that_an_exception_left_has_failed(alone: Recording) -> None:
    with pytest.raises(KeyError), distdiag.phase("save"):
        raise KeyError("lost")

    assert [(each.edge, each.failed) for each in alone.log.phases("save")] == [("begin", False), ("end", True)]


def test_decision_is_recorded_with_its_line(alone: Recording) -> None:
    distdiag.decision("early stop", True)

    (decision,) = alone.log.of(events.Decision)
    assert (decision.name, decision.value, decision.step) == ("early stop", True, 0)
    assert decision.path is not None
    assert "test_decision_is_recorded" in alone.log.paths()[decision.path][-1]


def test_broken_recording_does_not_change_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_facts: object) -> None:
        raise OSError("no more room")

    def trained() -> list[float]:
        torch.manual_seed(0)
        training = Training()
        for _ in range(3):
            training.step()
            distdiag.step(loss=1.0)
        weights: list[float] = next(training.model.parameters()).flatten().tolist()
        return weights

    with lonely_world():
        bare = trained()
    monkeypatch.delenv(RAISE_OWN_ERRORS)
    with recording(tmp_path) as made, lonely_world():
        monkeypatch.setattr(type(made.recorder), "write", broken)
        monkeypatch.setattr(type(made.recorder.journal), "append", broken)

        assert trained() == bare
