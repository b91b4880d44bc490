"""Watches activations being computed again in the backward: what activation checkpointing costs.

``torch.utils.checkpoint`` without reentrance computes inside a context of its own. The reentrant kind runs the
backward of what it computed in the same function, so that the two cannot be told apart: it is not watched.
"""

import threading
import time
from types import ModuleType
from typing import Any

from distdiag.hooks._patch import Undo, observe, together, when_imported
from distdiag.recorder import Recorder

CONTEXT = "_recomputation_hook"


def install(recorder: Recorder) -> Undo:
    """Add up per step how long activations were computed again."""
    return when_imported("torch.utils.checkpoint", lambda module: _watch(recorder, module))


def _watch(recorder: Recorder, module: ModuleType) -> Undo:
    context = getattr(module, CONTEXT, None)
    if context is None:
        return lambda: None
    begun = _Begun()
    return together(
        [observe(context, "__enter__", _Enter(begun)), observe(context, "__exit__", _Leave(begun, recorder))]
    )


class _Begun(threading.local):
    """How many contexts this thread is in, and since when in the outermost one."""

    depth = 0
    since_ns = 0


class _Enter:
    """Observes the beginning of a recomputation."""

    def __init__(self, begun: _Begun) -> None:
        self._begun = begun

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        begun = self._begun
        if not begun.depth:
            begun.since_ns = time.monotonic_ns()
        begun.depth += 1

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Nothing to do: the time began before."""


class _Leave:
    """Observes its end, which mostly comes by an exception: the last tensor that is needed stops it."""

    def __init__(self, begun: _Begun, recorder: Recorder) -> None:
        self._begun, self._recorder = begun, recorder

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Nothing to do: the time ends after."""

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        begun, loop = self._begun, self._recorder.loop
        if not begun.depth:
            return  # it began before recording did
        begun.depth -= 1
        if not begun.depth:
            loop.recomputed_ns = (loop.recomputed_ns or 0) + time.monotonic_ns() - begun.since_ns
