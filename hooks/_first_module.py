"""Names the first module whose output is not finite, once there is a reason to look.

A hook on every module's forward costs too much to be always there: it is put in place after the first value that was
not finite, or from the start if the settings ask for it, and it goes once it has named a module.
"""

import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from distdiag.errors import guard

NAMINGS = 3
"""Values that are not finite spread: after a few namings the next ones tell nothing new."""
MOST_FLAGS = 4096
"""Forwards of modules that are looked at in one step on a device."""


class FirstModule:
    """Looks at the outputs of modules while it is armed."""

    def __init__(self) -> None:
        self._found: tuple[str, str] | None = None
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._names: dict[int, str] = {}
        self._handle: Any = None
        self._namings = 0
        self._flags: list[tuple[str, Any, Any]] = []
        self._underway: tuple[list[str], Any, Any] | None = None

    def know(self, root: Any) -> None:
        """Take a model whose modules have names."""
        self._roots.add(root)
        self._names = {}

    def arm(self) -> None:
        """Begin to look."""
        if self._handle is None and self._namings < NAMINGS:
            from torch.nn.modules import module

            self._handle = module.register_module_forward_hook(self._look)

    def arm_unless_compiled(self) -> None:
        """Begin to look, but not in a program that was compiled: it would be compiled anew because of the hook."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is None or not dynamo.counters["frames"]:
            self.arm()

    def off(self) -> None:
        """Look no longer."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def taken(self, *, failed: bool) -> dict[str, str]:
        """Return ``module`` and ``origin`` of what was found in a step that failed.

        Where the step's numbers are finite after all, the output was meant to be as it was: a mask, perhaps.
        """
        found, self._found = self._found, None
        if found is None or not failed:
            return {}
        self._namings += 1
        self.off()
        return {"module": found[0], "origin": found[1]}

    def parameters_are_finite(self) -> bool:
        """Return whether all parameters of the known models are finite, as far as they are on the host."""
        return all(
            bool(parameter.isfinite().all())
            for root in list(self._roots)
            for parameter in numbers(root.parameters())
            if parameter.device.type == "cpu"
        )

    def step_ends(self, *, capturing: bool) -> None:
        """Read what a device found in an earlier step, and send what it found in this one."""
        if capturing:
            return
        if self._underway is not None and self._underway[2].query():
            names, copy, _ = self._underway
            self._underway = None
            rows = zip(names, copy.tolist(), strict=True)
            self._found = next(((name, "input" if given else "inside") for name, (bad, given) in rows if bad), None)
        flags, self._flags = self._flags, []
        if flags and self._underway is None:
            self._underway = _sent(flags)

    def _look(self, module: Any, args: Any, output: Any) -> None:
        if self._found is not None or self._handle is None:
            return
        with guard("look at a module's output"):
            bad = not_finite(_flat(output))
            if bad is True:
                if not_finite(_flat(args)) is True:
                    origin = "input"
                else:
                    origin = "parameters" if not_finite(module.parameters(recurse=False)) is True else "inside"
                self._found = (self._name(module), origin)
            elif bad is not None and bad is not False and len(self._flags) < MOST_FLAGS:
                self._flags.append((self._name(module), bad, not_finite(_flat(args))))

    def _name(self, module: Any) -> str:
        if not self._names:
            self._names = {id(each): name for root in self._roots for name, each in root.named_modules()}
        return self._names.get(id(module)) or type(module).__name__


def not_finite(tensors: Iterable[Any]) -> Any:
    """Return whether any tensor is not finite; on a device a tensor that will tell, None if there are no numbers."""
    flags = [~tensor.detach().isfinite().all() for tensor in numbers(tensors)]
    if not flags:
        return None
    if all(flag.device.type == "cpu" for flag in flags):
        return any(bool(flag) for flag in flags)
    import torch

    devices = {flag.device for flag in flags}
    return torch.stack(flags).any() if len(devices) == 1 else None


def numbers(tensors: Iterable[Any]) -> Iterator[Any]:
    """Yield the plain tensors of floating-point numbers."""
    import torch

    for tensor in tensors:
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type in ("cpu", "cuda")
        if plain and tensor.is_floating_point() and tensor.numel():
            yield tensor


def _flat(value: Any) -> Iterator[Any]:
    """Yield what a tensor, a list or a mapping holds, one level deep."""
    if isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    else:
        yield value


def _sent(flags: list[tuple[str, Any, Any]]) -> tuple[list[str], Any, Any]:
    """Send flags of a device to the host without waiting; return names, the copy and the event behind it."""
    import torch

    device = flags[0][1].device
    flags = [(name, bad, given) for name, bad, given in flags if bad.device == device]
    rows = [torch.stack((bad, given if _is_on(given, device) else torch.zeros_like(bad))) for _, bad, given in flags]
    copy = torch.zeros((len(rows), 2), dtype=torch.bool, pin_memory=True)
    copy.copy_(torch.stack(rows), non_blocking=True)
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return [name for name, _, _ in flags], copy, event


def _is_on(flag: Any, device: Any) -> bool:
    return bool(getattr(flag, "device", None) == device)
