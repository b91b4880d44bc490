"""Seeds and states of random number generators as digests: enough to see whether a replay has the same ones."""

import random
import sys
import zlib
from typing import Any


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
