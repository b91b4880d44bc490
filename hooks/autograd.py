"""Watches backward passes: micro-steps, and the call site of what C++ issues during them."""

import sys
import threading
from types import ModuleType
from typing import Any

from distdiag.hooks._patch import Undo, observe, when_imported
from distdiag.recorder import Recorder


def install(recorder: Recorder) -> Undo:
    """Record each ``backward()`` of the main thread."""
    return when_imported("torch.autograd", lambda module: _install(recorder, module))


def _install(recorder: Recorder, autograd: ModuleType) -> Undo:
    return observe(autograd, "backward", _Backward(recorder))


class _Backward:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        recorder = self._recorder
        if threading.get_ident() != recorder.main_thread:
            return None
        site = recorder.sites.at(sys._getframe(1))
        # Calls from the autograd engine's own threads have no Python frames; this is where they come from.
        recorder.backward_site = None if site is recorder.sites.nowhere else site
        recorder.poll()  # what a forward waited for in C++ has ended by now
        return recorder.loop.begin_backward()

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        if token is not None:
            self._recorder.poll()
            # Pipeline schedules run backwards of single micro-batches inside their own phase.
            self._recorder.loop.enter(token if token == "backward" else "")
            self._recorder.backward_site = None
