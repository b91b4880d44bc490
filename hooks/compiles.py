"""Watches compilations: a rank that compiles in the middle of training keeps all others waiting."""

import contextlib
import time
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.errors import guard
from distdiag.hooks._patch import Undo, when_imported
from distdiag.recorder import Recorder


def install(recorder: Recorder) -> Undo:
    """Record each compilation of ``torch.compile``: when it began, how long it took and what set it off."""
    return when_imported("torch._dynamo.callback", lambda module: _install(recorder, module))


def _install(recorder: Recorder, module: ModuleType) -> Undo:
    handler = module.callback_handler
    started_ns = 0

    def begin(*_: Any) -> None:
        nonlocal started_ns
        started_ns = time.monotonic_ns()

    def end(*arguments: Any) -> None:
        nonlocal started_ns
        if not started_ns:
            return  # it began before recording did
        with guard("record a compilation"):
            trigger = getattr(arguments[0], "callback_trigger", None) if arguments else None
            recorder.write(
                events.Compile(
                    time_ns=started_ns,
                    duration_ns=time.monotonic_ns() - started_ns,
                    step=recorder.step,
                    what=None if trigger is None else str(trigger.name).lower(),
                )
            )
        started_ns = 0

    handler.register_start_callback(begin)
    handler.register_end_callback(end)

    def undo() -> None:
        with contextlib.suppress(ValueError):  # somebody cleared them all
            handler.remove_start_callback(begin)
        with contextlib.suppress(ValueError):
            handler.remove_end_callback(end)

    return undo
