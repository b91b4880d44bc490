"""Watches losses, gradient norms and loss scales, and where a value first was not finite; never waits for a device."""

import math
import time
import weakref
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.errors import guard
from distdiag.hooks._first_module import FirstModule
from distdiag.hooks._patch import Undo, observe, together, when_imported
from distdiag.hooks._readings import Readings, is_number
from distdiag.recorder import Recorder

NAMES = ("loss", "grad_norm", "loss_scale", "gradient")
MUST_BE_FINITE = ("loss", "grad_norm", "gradient")
SCALERS = ("torch.amp.grad_scaler.GradScaler", "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler")


def install(recorder: Recorder) -> Undo:
    """Record what backwards, clipping and loss scalers show of a step, unless the settings say not to."""
    if not recorder.settings.numerics:
        return lambda: None
    numerics = Numerics(recorder)
    recorder.numerics = numerics
    recorder.step_ends = numerics.end
    undos = [
        when_imported("torch.autograd", lambda module: observe(module, "backward", _Backward(numerics))),
        when_imported("torch.nn.utils.clip_grad", lambda module: _watch_norm(numerics, module)),
        when_imported(
            "torch.distributed.fsdp.fully_sharded_data_parallel",
            lambda module: observe(module.FullyShardedDataParallel, "clip_grad_norm_", _Norm(numerics)),
        ),
    ]
    for scaler in SCALERS:
        module, _, name = scaler.rpartition(".")
        undos.append(when_imported(module, lambda module, name=name: _watch_scaler(numerics, module, name)))  # type: ignore[misc]
    if recorder.settings.name_modules:
        undos.append(when_imported("torch.nn.modules.module", lambda _: _armed(numerics)))

    def undo() -> None:
        numerics.close()
        recorder.step_ends = lambda: None
        recorder.numerics = None

    return together([undo, *undos])


def _armed(numerics: "Numerics") -> Undo:
    numerics.modules.arm()
    return numerics.modules.off


class Numerics:
    """What is known of the numbers of each step; hooks tell it, it writes one record a step."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.modules = FirstModule()
        self.scaled = 0
        """Losses that a scaler was given, seen there before they were scaled, and whose backward is still to come."""
        self.inputs: list[weakref.ref[Any]] = []
        """Tensors that the wrapped model was called with last."""
        self.has_replica = True
        """Whether that model's parameters can be looked at here: shards are not all of them, and asking takes peers."""
        self.alarmed = False
        self._has_scaler = False
        self._readings = Readings(NAMES, self._deliver, lambda: recorder.capturing != 0)
        self._values: dict[int, dict[str, float]] = {}
        self._facts: dict[str, Any] = {}

    def called_with(self, values: Iterable[Any], *, has_replica: bool) -> None:
        """Take what a model is called with, without keeping it alive."""
        import torch

        self.has_replica = has_replica
        self.inputs = [
            weakref.ref(each)
            for each in values
            if type(each) is torch.Tensor and each.is_floating_point() and each.device.type == "cpu"
        ]

    def see(self, name: str, tensor: Any) -> None:
        """Take a number of the present step: one of ``NAMES``."""
        value = self._readings.add(name, tensor)
        if value is not None and not math.isfinite(value) and name in MUST_BE_FINITE:
            self._alarm(name)

    def see_gradient(self, gradient: Any) -> None:
        """Take a gradient of this rank alone: its sum is finite if it is. Autograd does not record in its hooks."""
        if gradient.element_size() > 2:
            total = gradient.sum()
        else:
            import torch

            total = gradient.sum(dtype=torch.float32)  # of halves the sum itself would overflow
        self.see("gradient", total)

    def see_scale(self, tensor: Any) -> None:
        """Take the loss scale in force; with one, gradients that overflow are nothing unusual."""
        self._has_scaler = True
        if is_number(tensor):
            self.see("loss_scale", tensor)

    def note(self, **facts: Any) -> None:
        """Add fields to the record of the present step."""
        self._facts |= facts

    def end(self) -> None:
        """Write what is known by the end of a step: all of it, or on a device that of an earlier step."""
        step = self.recorder.step
        self.scaled = 0
        self._readings.end(step)
        if self._facts:
            self._values.setdefault(step, {})
        self._write(step)

    def close(self) -> None:
        """Write what has arrived."""
        self.modules.off()
        self._readings.collect()
        self._write(-1)

    def _deliver(self, step: int, name: str, value: float) -> None:
        self._values.setdefault(step, {})[name] = value

    def _write(self, present: int) -> None:
        values, self._values = self._values, {}
        for step, known in values.items():
            failed = [name for name in MUST_BE_FINITE if not math.isfinite(known.get(name, 0.0))]
            facts: dict[str, Any] = self.modules.taken(failed=bool(failed))
            if step == present:
                facts |= self._facts
                self._facts = {}
            if failed:
                self._arm(failed)
            scale = known.get("loss_scale")
            self.recorder.write(
                events.Numerics(
                    step=step,
                    time_ns=time.monotonic_ns(),
                    loss=as_word(known.get("loss")),
                    grad_norm=as_word(known.get("grad_norm")),
                    loss_scale=scale if scale is not None and math.isfinite(scale) else None,
                    nonfinite=failed,
                    **facts,
                )
            )
        self.modules.step_ends(capturing=self.recorder.capturing != 0)

    def _alarm(self, name: str) -> None:
        """Write at once that something is not finite for the first time: the rank may not come to the step's end."""
        if self.alarmed or (self._has_scaler and name != "loss"):
            return
        origin = self._origin() if name == "loss" else None
        if origin is not None:
            self.note(origin=origin)
        self.recorder.write(
            events.Numerics(step=self.recorder.step, time_ns=time.monotonic_ns(), nonfinite=[name], origin=origin)
        )
        self._arm([name])

    def _arm(self, failed: list[str]) -> None:
        if "loss" in failed or not self._has_scaler:
            self.alarmed = True
            self.modules.arm_unless_compiled()

    def _origin(self) -> str | None:
        """Return what a loss of the host that is not finite came from, as far as the model's inputs still exist."""
        inputs = [tensor for tensor in (ref() for ref in self.inputs) if tensor is not None]
        if not all(bool(tensor.isfinite().all()) for tensor in inputs):
            return "batch"
        if not self.has_replica:
            return None
        if not self.modules.parameters_are_finite():
            return "parameters"
        return "inside" if inputs and len(inputs) == len(self.inputs) else None


def as_word(value: float | None) -> float | str | None:
    """Return a number as JSON can hold it."""
    return value if value is None or math.isfinite(value) else str(value)


class _Backward:
    """Sees the tensor that a backward begins at; that of a pipeline stage comes with a gradient and is no loss."""

    def __init__(self, numerics: Numerics) -> None:
        self._numerics = numerics

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        numerics = self._numerics
        tensors = args[0] if args else kwargs.get("tensors")
        gradients = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
        if numerics.scaled:
            numerics.scaled -= 1
        elif gradients is None and is_number(tensors):
            numerics.see("loss", tensors)

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Nothing to do: the loss is known before."""


def _watch_norm(numerics: Numerics, module: ModuleType) -> Undo:
    # Many import the clipping function itself by name; what it calls for the norm is looked up each time.
    name = "_get_total_norm" if hasattr(module, "_get_total_norm") else "clip_grad_norm_"
    return observe(module, name, _Norm(numerics), in_graphs=True)


class _Norm:
    """Sees the norm of the gradients where somebody clips by it."""

    def __init__(self, numerics: Numerics) -> None:
        self._numerics = numerics

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Nothing to do: the norm is the result."""

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        if is_number(result):
            self._numerics.see("grad_norm", result)


def _watch_scaler(numerics: Numerics, module: ModuleType, name: str) -> Undo:
    owner = getattr(module, name)
    undos = [observe(owner, "scale", _Scale(numerics))] if "scale" in vars(owner) else []
    if "step" in vars(owner):
        undos.append(observe(owner, "step", _ScaledStep(numerics)))
    return together(undos)


class _Scale:
    """Sees a loss before it is scaled."""

    def __init__(self, numerics: Numerics) -> None:
        self._numerics = numerics

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loss = args[1] if len(args) > 1 else kwargs.get("outputs")
        if is_number(loss):
            self._numerics.see("loss", loss)
            self._numerics.scaled += 1

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Nothing to do."""


class _ScaledStep:
    """Sees the scale in force, and the steps that the scaler leaves out; those end a step of the loop all the same."""

    def __init__(self, numerics: Numerics) -> None:
        self._numerics = numerics

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        scaler = args[0]
        if not scaler._enabled:
            return None
        self._numerics.see_scale(scaler._scale)
        optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
        return self._numerics.recorder.step if _tells_its_steps(optimizer) else None

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        recorder = self._numerics.recorder
        if token is not None and error is None and recorder.step == token:
            self._numerics.note(skipped=True)
            with guard("end a step that was skipped"):
                recorder.loop.begin_optimizer()
                recorder.loop.end_optimizer()


def _tells_its_steps(optimizer: Any) -> bool:
    import torch

    return isinstance(optimizer, torch.optim.Optimizer)
