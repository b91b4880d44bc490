"""Losses, gradient norms, loss scales and the first value that is not finite; and that nothing waits for a device."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import distdiag
from distdiag import events
from distdiag.hooks._readings import SLOTS, DeviceBuffer, Readings
from tests.recordings import Recording, recording


def numerics(recorded: Recording) -> list[events.Numerics]:
    return [each for each in recorded.log.of(events.Numerics) if each.wrapper is None]


def backward(loss: Any) -> None:
    loss.backward()


def trained(steps: int = 1, *, poison: int = -1, clip: bool = False) -> nn.Module:
    """Train a small model; in step ``poison`` its input is not a number."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        values = torch.full((2, 4), math.nan if step == poison else 1.0)
        backward(model(values).square().mean())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def test_loss_is_known_from_its_backward(recorded: Recording) -> None:
    loss = (torch.ones(2, requires_grad=True) * 1.5).sum()

    backward(loss)
    distdiag.step()

    (record,) = numerics(recorded)
    assert (record.step, record.loss) == (0, 3.0)


def test_loss_of_several_micro_steps_is_their_mean(recorded: Recording) -> None:
    for value in (1.0, 2.0):
        backward((torch.ones(1, requires_grad=True) * value).sum())
    distdiag.step()

    assert [record.loss for record in numerics(recorded)] == [1.5]


def test_backward_of_a_pipeline_stage_is_no_loss(recorded: Recording) -> None:
    output = torch.ones(1, requires_grad=True) * 2

    torch.autograd.backward(output, torch.ones(1))
    distdiag.step()

    assert numerics(recorded) == []


def test_norm_is_known_where_gradients_are_clipped(recorded: Recording) -> None:
    model = trained(clip=True)

    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
    (record,) = numerics(recorded)
    assert isinstance(record.grad_norm, float)
    assert min(record.grad_norm, 1.0) == pytest.approx(norm, rel=1e-4)


def test_scaled_loss_is_recorded_as_it_was_before_with_its_scale(recorded: Recording) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    backward(scaler.scale((weight * 3).sum()))
    scaler.step(optimizer)
    scaler.update()

    (record,) = numerics(recorded)
    assert (record.loss, record.loss_scale, record.skipped) == (3.0, 8.0, False)


def test_step_that_the_scaler_leaves_out_ends_all_the_same(recorded: Recording) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    for value in (math.inf, 1.0):
        optimizer.zero_grad()
        backward(scaler.scale((weight * value).sum()))
        scaler.step(optimizer)
        scaler.update()

    assert [(record.step, record.skipped) for record in numerics(recorded) if record.loss_scale] == [
        (0, True),
        (1, False),
    ]
    assert [step.step for step in recorded.log.of(events.Step)] == [0, 1]


def test_value_that_is_not_finite_is_written_before_the_step_ends(recorded: Recording) -> None:
    backward((torch.ones(1, requires_grad=True) * math.inf).sum())

    (record,) = numerics(recorded)
    assert record.nonfinite == ["loss"]


def test_next_values_that_are_not_finite_have_a_module(recorded: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)  # another test may have compiled something
    trained(3, poison=1)

    assert [record.loss for record in numerics(recorded) if not record.nonfinite]
    assert [(each.module, each.origin) for each in numerics(recorded) if each.module] == [("Linear", "parameters")]


def test_modules_are_named_from_the_start_where_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTDIAG_NUMERICS", "modules")
    with recording(tmp_path) as made:
        trained(1, poison=0)

        assert [(each.module, each.origin) for each in numerics(made) if each.module] == [("Linear", "input")]


def test_output_that_is_infinite_on_purpose_accuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Masked(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return values.masked_fill(torch.tensor([True, False]), -math.inf)

    monkeypatch.setenv("DISTDIAG_NUMERICS", "modules")
    with recording(tmp_path) as made:
        backward(Masked()(torch.ones(2, requires_grad=True)).softmax(0).sum())
        distdiag.step()

        (record,) = numerics(made)
        assert (record.nonfinite, record.module) == ([], None)


def test_nothing_is_recorded_where_it_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIAG_NUMERICS", "off")
    with recording(tmp_path) as made:
        trained(2)

        assert made.log.of(events.Numerics) == []


# ---- devices --------------------------------------------------------------------------------------------------------
class Device:
    """Stands for a device: counts what would wait for it, and lets copies arrive when it is told to."""

    def __init__(self) -> None:
        self.waits = 0
        self.passed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @property
    def cuda(self) -> "Device":
        return self

    def zeros(self, *shape: int, dtype: Any, device: Any = None, pin_memory: bool = False) -> Any:
        zeros = torch.zeros(*shape, dtype=dtype)
        return Pinned(zeros, self) if pin_memory else zeros

    def Event(self) -> "Device":  # noqa: N802 - torch's name
        return self

    def record(self) -> None:
        """An event is only enqueued."""

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.waits += 1


class Pinned:
    """Pinned memory: what is copied there without ``non_blocking`` waits, and so does reading it too early."""

    def __init__(self, tensor: torch.Tensor, device: Device) -> None:
        self._tensor, self._device = tensor, device

    def copy_(self, source: torch.Tensor, *, non_blocking: bool = False) -> None:
        self._device.waits += not non_blocking
        self._tensor.copy_(source)

    def tolist(self) -> list[float]:
        self._device.waits += not self._device.passed
        return self._tensor.tolist()


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that give a tensor's value to Python: on a device each of them waits."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_local_scalar_dense" in str(func) or "is_nonzero" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def arrived() -> list[tuple[int, str, float]]:
    return []


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def buffer(device: Device, arrived: list[tuple[int, str, float]]) -> Iterator[DeviceBuffer]:
    with Reads() as reads:
        yield DeviceBuffer(["loss", "grad_norm"], "cpu", device, lambda *each: arrived.append(each))
    assert (reads.count, device.waits) == (0, 0)


def test_value_of_a_device_is_delivered_for_its_step_once_it_arrived(
    device: Device, buffer: DeviceBuffer, arrived: list[tuple[int, str, float]]
) -> None:
    for step, values in enumerate(((1.0, 2.0), (5.0,))):
        for value in values:
            buffer.add("loss", torch.tensor(value))
        buffer.send(step)
    assert arrived == []

    device.passed = True
    buffer.collect()

    assert arrived == [(0, "loss", 1.5), (1, "loss", 5.0)]


def test_device_far_behind_gets_no_further_copies(
    device: Device, buffer: DeviceBuffer, arrived: list[tuple[int, str, float]]
) -> None:
    for step in range(SLOTS + 3):
        buffer.add("grad_norm", torch.tensor(float(step)))
        buffer.send(step)

    device.passed = True
    buffer.collect()

    assert [step for step, _, _ in arrived] == list(range(SLOTS))


def test_values_of_a_device_are_not_touched_while_a_graph_is_captured() -> None:
    class Untouchable:
        is_cpu = False
        device = torch.device("cuda", 0)

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    readings = Readings(["loss"], lambda *_: None, lambda: True)

    assert readings.add("loss", Untouchable()) is None
