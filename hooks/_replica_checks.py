"""Writes checksums of parameters: at once where they are on the CPU, else when their device has computed them."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from distdiag import events
from distdiag.hooks._checksums import digests_of, joined, packed, sums_of
from distdiag.recorder import Recorder


class Checks:
    """The checksums of a process, those that devices still compute among them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._underway: deque[tuple[int, int, int, Any, Any]] = deque()

    def begin(self, number: int, named: Sequence[tuple[Any, Any]], gradients: int = 0) -> None:
        """Write the checksum of some parameters, and that of the ``gradients`` behind them, now or when it is here."""
        devices = {tensor.device for _, tensor in named}
        if len(devices) != 1 or self._recorder.capturing:
            return  # parts of a model on several devices are no replicas of the usual kind
        sums = sums_of([tensor for _, tensor in named])
        if sums.device.type == "cpu":
            self._write(number, self._recorder.step, gradients, sums.tolist())
            return
        import torch

        copy = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
        copy.copy_(sums, non_blocking=True)
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._underway.append((number, self._recorder.step, gradients, copy, event))

    def collect(self) -> None:
        """Write the checksums that have arrived from devices."""
        while self._underway and not self._recorder.capturing and self._underway[0][-1].query():
            number, step, gradients, copy, _ = self._underway.popleft()
            self._write(number, step, gradients, copy.tolist())

    def _write(self, number: int, step: int, gradients: int, sums: list[int]) -> None:
        parameters = len(sums) - gradients
        digests = digests_of(sums[:parameters])
        self._recorder.write(
            events.Numerics(
                step=step,
                time_ns=time.monotonic_ns(),
                wrapper=number,
                checksum=joined(digests),
                digests=packed(digests),
                gradients=joined(digests_of(sums[parameters:])) if gradients else None,
            )
        )
