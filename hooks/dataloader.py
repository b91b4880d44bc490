"""Watches data loaders: an open batch says that a rank still waits for its data."""

import threading
import time
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.hooks._patch import Undo, observe, when_imported
from distdiag.recorder import Recorder


def install(recorder: Recorder) -> Undo:
    """Record each batch that a ``DataLoader`` is asked for."""
    return when_imported("torch.utils.data.dataloader", lambda module: _install(recorder, module))


def _install(recorder: Recorder, dataloader: ModuleType) -> Undo:
    return observe(dataloader._BaseDataLoaderIter, "__next__", _Next(recorder))


class _Next:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._iterators = 0

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> events.Batch:
        recorder, iterator = self._recorder, args[0]
        number = getattr(iterator, "_distdiag_loader", None)
        if number is None:
            self._iterators += 1
            number = iterator._distdiag_loader = self._iterators
        if threading.get_ident() == recorder.main_thread:
            recorder.loop.enter("data")
        begun = events.Batch(
            batch=int(getattr(iterator, "_num_yielded", 0)),
            edge="begin",
            time_ns=time.monotonic_ns(),
            step=recorder.step,
            path=recorder.here(),
            loader=number,
        )
        recorder.write(begun)
        return begun

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        if token is None:
            return
        recorder = self._recorder
        recorder.write(
            events.Batch(
                batch=token.batch,
                edge="end",
                time_ns=time.monotonic_ns(),
                step=recorder.step,
                loader=token.loader,
                exhausted=error is StopIteration,
            )
        )
        if threading.get_ident() == recorder.main_thread:
            recorder.loop.enter("" if error is not None else "forward")
