"""Garbage collection left be while files are read: records make no cycles, and are too many to be looked through."""

import contextlib
import gc
from collections.abc import Iterator


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
