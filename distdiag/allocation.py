"""What a command that reads much and then ends does with memory: it looks for no garbage, and keeps what it freed."""

import contextlib
import ctypes
import gc
from collections.abc import Iterator

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Numbers of the options in ``mallopt(3)``."""
_WHERE_POSSIBLE = contextlib.suppress(AttributeError, OSError, TypeError)
HELD_BYTES = 1 << 30
"""Freed memory that is kept for what comes next."""
PAD_BYTES = 64 << 20
"""Taken from the system at once."""
LARGEST_BYTES = 32 << 20
"""The largest block that the allocator can be made to reuse."""


def reuse_freed() -> None:
    """Keep freed memory, where the C library can: to get new pages for each column takes longer than to fill them."""
    with _WHERE_POSSIBLE:
        options = {_TRIM_THRESHOLD: HELD_BYTES, _TOP_PAD: PAD_BYTES, _MMAP_THRESHOLD: LARGEST_BYTES}
        for option, value in options.items():
            ctypes.CDLL(None).mallopt(option, value)


def give_back() -> None:
    """Return memory that was freed to the system, where the C library can.

    Each thread of the engine has a place of its own to allocate from, in which nothing else would use what it left.
    """
    with _WHERE_POSSIBLE:
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Collect no garbage: a search for cycles among millions of records takes as long as reading them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
