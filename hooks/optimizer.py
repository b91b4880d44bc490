"""Watches optimizers: the end of an optimizer's step is the end of a training step."""

from types import ModuleType
from typing import Any

from distdiag.errors import guard
from distdiag.hooks._patch import Undo, together, when_imported
from distdiag.recorder import Recorder


def install(recorder: Recorder) -> Undo:
    """End a step with each outermost ``optimizer.step()`` that followed a forward or backward."""
    return when_imported("torch.optim.optimizer", lambda module: _install(recorder, module))


def _install(recorder: Recorder, optimizer: ModuleType) -> Undo:
    def before(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with guard("note the begin of an optimizer step"):
            recorder.poll()  # gradients are there: what the backward waited for in C++ has ended by now
            recorder.loop.begin_optimizer()

    def after(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with guard("note the end of a step"):
            recorder.loop.end_optimizer()

    begin = optimizer.register_optimizer_step_pre_hook(before)
    end = optimizer.register_optimizer_step_post_hook(after)
    return together([begin.remove, end.remove])
