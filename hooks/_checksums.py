"""Checksums of parameters: equal bits give equal ones, and any single bit that differs changes them.

Each parameter is read as 64-bit integers and summed with wrap-around, which on a host is as fast as summing it as
numbers; on a device the sums go to pinned memory by an asynchronous copy and are read a step later.
"""

import random
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from distdiag import events
from distdiag.recorder import Recorder

MOST_DIGESTS = 1024
"""Of more parameters neighbours share a digest."""
_WORD = 8
_MASK_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
"""Odd, so that multiplying with it loses nothing; its high half depends on every bit below."""
_FNV_PRIME = 16777619


def checked(named: Iterable[tuple[Any, Any]], ignored: Iterable[str]) -> list[tuple[Any, Any]]:
    """Return names and tensors of the parameters that can be compared; of tensor-parallel ones the local shard."""
    import torch

    left_out = set(ignored)
    found = []
    for name, parameter in named:
        tensor = getattr(parameter, "_local_tensor", parameter).detach()
        if name not in left_out and type(tensor) is torch.Tensor and tensor.device.type in ("cpu", "cuda"):
            found.append((name, tensor))
    return found


def sums_of(tensors: Sequence[Any]) -> Any:
    """Return one tensor with the 64-bit sum of each tensor; it lies where they lie."""
    import torch

    with torch.no_grad():
        return torch.stack([_sum(torch, tensor) for tensor in tensors])


def _sum(torch: Any, tensor: Any) -> Any:
    """Return the sum over a tensor's bits as 64-bit words; what does not fill a word is summed apart."""
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    start = -flat.storage_offset() % _WORD
    stop = start + (flat.numel() - start) // _WORD * _WORD
    if stop <= start:
        return _sum_of_bytes(torch, flat)
    words = flat[start:stop].view(torch.int64).sum()
    if start or stop < flat.numel():
        rest = torch.cat((flat[:start], flat[stop:]))
        words = words + _sum_of_bytes(torch, rest)
    return words


def _sum_of_bytes(torch: Any, few: Any) -> Any:
    weights = torch.arange(1, few.numel() + 1, device=few.device, dtype=torch.int64) * 257
    return (few.to(torch.int64) * weights).sum()


def digests_of(sums: Sequence[int]) -> list[int]:
    """Return 32-bit digests of sums, at most ``MOST_DIGESTS``."""
    mixed = [((each & _MASK_64) * _GOLDEN & _MASK_64) >> 32 for each in sums]
    size = block_size(len(mixed))
    return mixed if size == 1 else [joined(mixed[start : start + size]) for start in range(0, len(mixed), size)]


def block_size(parameters: int) -> int:
    """Return how many parameters share a digest."""
    return max(1, -(-parameters // MOST_DIGESTS))


def joined(digests: Iterable[int]) -> int:
    """Return one 32-bit digest of several in their order."""
    whole = 2166136261
    for digest in digests:
        whole = ((whole ^ digest) * _FNV_PRIME) & 0xFFFFFFFF
    return whole


def packed(digests: Sequence[int]) -> bytes:
    """Return digests as four bytes each, little end first."""
    return b"".join(digest.to_bytes(4, "little") for digest in digests)


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


def rng_digests() -> dict[str, int]:
    """Return the seed of torch and 32-bit digests of the generators that are in use; about 0.2 ms."""
    digests = {"python": zlib.crc32(repr(random.getstate()).encode())}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        _, keys, position, *_ = numpy.random.get_state()
        digests["numpy"] = zlib.crc32(keys.tobytes(), position)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        digests["torch.seed"] = torch.initial_seed()
        digests["torch"] = _digest(torch.get_rng_state())
        cuda = torch.cuda
        if cuda.is_initialized() and not cuda.is_current_stream_capturing():
            generator = cuda.default_generators[cuda.current_device()]
            digests["cuda.seed"] = generator.initial_seed()
            digests["cuda"] = _digest(generator.get_state())  # kept on the host
    return digests


def _digest(state: Any) -> int:
    return zlib.crc32(bytes(state.tolist()))
