"""Watches compilations: a rank that compiles in the middle of training keeps all others waiting.

It also keeps the compiler out of distdiag's own code, which runs inside code that is compiled: tracing it would take
time, break graphs and give warnings about things that are not the user's.
"""

import contextlib
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.errors import guard
from distdiag.hooks._patch import Undo, observe, together, when_imported
from distdiag.recorder import Recorder

OWN_PACKAGE = "distdiag"


def install(recorder: Recorder) -> Undo:
    """Record each compilation of ``torch.compile``: when it began, how long it took and what set it off."""
    return together(
        [
            when_imported("torch._dynamo.trace_rules", _pass_over),
            when_imported("torch._dynamo.callback", lambda module: _install(recorder, module)),
        ]
    )


def _pass_over(trace_rules: ModuleType) -> Undo:
    """Have the compiler run distdiag's functions as they are."""
    before = list(trace_rules.SKIP_DIRS)
    trace_rules.add(OWN_PACKAGE)
    added = [each for each in trace_rules.SKIP_DIRS if each not in before]

    def undo() -> None:
        for each in added:
            trace_rules.SKIP_DIRS.remove(each)
        trace_rules._recompile_re()

    return undo


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

    def register() -> None:
        handler.register_start_callback(begin)
        handler.register_end_callback(end)

    def undo() -> None:
        with contextlib.suppress(ValueError):  # somebody cleared them all
            handler.remove_start_callback(begin)
        with contextlib.suppress(ValueError):
            handler.remove_end_callback(end)

    register()
    return together([undo, observe(handler, "clear", _Cleared(register))])


class _Cleared:
    """Registers again after ``torch._dynamo.reset`` has cleared all callbacks."""

    def __init__(self, register: Callable[[], None]) -> None:
        self._register = register

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Nothing to do: what counts is that they are gone."""

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        self._register()
