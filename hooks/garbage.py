"""Watches the garbage collector: a pause on one rank is a wait on all the others."""

import gc
import time
from typing import Any

from distdiag import events
from distdiag.errors import guard
from distdiag.hooks._patch import Undo
from distdiag.recorder import Recorder

NOTICEABLE_NS = 1_000_000


def install(recorder: Recorder) -> Undo:
    """Record collections that paused the process for a millisecond or more."""
    started_ns = 0

    def watch(phase: str, info: dict[str, Any]) -> None:
        nonlocal started_ns
        now = time.monotonic_ns()
        if phase == "start":
            started_ns = now
        elif started_ns and now - started_ns >= NOTICEABLE_NS:
            with guard("record a garbage collection"):
                recorder.write(
                    events.GarbageCollection(
                        time_ns=started_ns,
                        duration_ns=now - started_ns,
                        generation=info["generation"],
                        step=recorder.step,
                    )
                )

    gc.callbacks.append(watch)
    return lambda: gc.callbacks.remove(watch)
