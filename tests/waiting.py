"""Waiting in tests for what another thread or process is about to do."""

import time
from collections.abc import Callable
from typing import Any

SOON_SECONDS = 30.0
LOOK_SECONDS = 0.005


def until(condition: Callable[[], Any]) -> Any:
    """Return what a condition gives once that is true; fail where it does not come to be."""
    deadline = time.monotonic() + SOON_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(LOOK_SECONDS)
    return found
