"""Values of single numbers that stand in tensors, read without waiting for a device.

A tensor of the host is read at once. One of a device is added to a small buffer there; at the end of a step that
buffer goes to pinned memory by an asynchronous copy, and it is read when an event behind the copy has passed: a step
later, or never, but not by waiting.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

SLOTS = 4
"""Copies on their way at once; a device that is further behind gets no further ones."""

Deliver = Callable[[int, str, float], None]
"""Takes the step, the name and the mean of the values that were seen under that name in that step."""


class DeviceBuffer:
    """Sums of named values on one device, and their copies on the way to the host."""

    def __init__(self, names: Sequence[str], device: Any, torch: Any, deliver: Deliver) -> None:
        self._names = list(names)
        self._sums = torch.zeros(len(names), dtype=torch.float32, device=device)
        self._counts = [0] * len(names)
        self._spare = [
            (torch.zeros(len(names), dtype=torch.float32, pin_memory=True), torch.cuda.Event()) for _ in range(SLOTS)
        ]
        self._underway: deque[tuple[int, list[int], Any, Any]] = deque()
        self._no_grad = torch.no_grad
        self._deliver = deliver

    def add(self, name: str, tensor: Any) -> None:
        """Add the one number in a tensor of this device."""
        index = self._names.index(name)
        with self._no_grad():
            self._sums[index].add_(tensor.detach().reshape(()))
        self._counts[index] += 1

    def send(self, step: int) -> None:
        """Send what was added to the host on behalf of a step."""
        self.collect()
        if any(self._counts) and self._spare:
            pinned, event = self._spare.pop()
            pinned.copy_(self._sums, non_blocking=True)
            event.record()
            self._underway.append((step, self._counts, pinned, event))
        if any(self._counts):
            self._sums.zero_()
            self._counts = [0] * len(self._names)

    def collect(self) -> None:
        """Deliver what has arrived."""
        while self._underway and self._underway[0][3].query():
            step, counts, pinned, event = self._underway.popleft()
            for name, count, total in zip(self._names, counts, pinned.tolist(), strict=True):
                if count:
                    self._deliver(step, name, total / count)
            self._spare.append((pinned, event))


class Readings:
    """Means of named values of each step, wherever their tensors are."""

    def __init__(self, names: Sequence[str], deliver: Deliver, is_capturing: Callable[[], bool]) -> None:
        self._names = tuple(names)
        self._deliver = deliver
        self._is_capturing = is_capturing
        self._sums: dict[str, tuple[float, int]] = {}
        self._devices: dict[Any, DeviceBuffer] = {}

    def add(self, name: str, tensor: Any) -> float | None:
        """Add the one number that a tensor holds; return it where it can be known at once."""
        if tensor.is_cpu:
            value: float = tensor.item()
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + value, count + 1
            return value
        device = tensor.device
        if device.type == "cuda" and not self._is_capturing():
            buffer = self._devices.get(device)
            if buffer is None:
                import torch

                buffer = self._devices[device] = DeviceBuffer(self._names, device, torch, self._deliver)
            buffer.add(name, tensor)
        return None

    def end(self, step: int) -> None:
        """Deliver what is known of a step that ends, and what arrived of earlier ones."""
        sums, self._sums = self._sums, {}
        for name, (total, count) in sums.items():
            self._deliver(step, name, total / count)
        if self._devices and not self._is_capturing():
            for buffer in self._devices.values():
                buffer.send(step)

    def collect(self) -> None:
        """Deliver what has arrived by now; the last that can be known."""
        for buffer in self._devices.values():
            buffer.collect()


class NumberTest:
    """Tells plain tensors with one floating-point number from anything else; on the path of every backward."""

    def __init__(self) -> None:
        self._types: tuple[Any, ...] = ()
        self._is_wrapped: Callable[[Any], bool] = lambda tensor: False

    def __call__(self, tensor: Any) -> bool:
        """Return whether it is one, and not one that only traces."""
        if not self._types:
            import torch

            self._types = (torch.Tensor, torch.nn.Parameter)
            self._is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        return (
            type(tensor) in self._types
            and tensor.numel() == 1
            and tensor.is_floating_point()
            and not self._is_wrapped(tensor)
        )


is_number = NumberTest()
