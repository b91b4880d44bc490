"""Watches multiprocessing start processes: ranks that a program starts itself are recorded as the program is.

A process that is started afresh begins to record before its task does, and a forked one when it joins a process group.
That holds as long as the program is no rank: what a rank starts are helpers, and their ``install()`` does nothing.
"""

import dataclasses
import os
from functools import partial
from typing import Any

from distdiag import recording
from distdiag.ancestry import HELPER_VARIABLE
from distdiag.hooks._patch import Undo, observe, together, when_imported
from distdiag.recorder import Recorder
from distdiag.settings import Settings

HELPERS = ("concurrent.futures.", "joblib.", "multiprocessing.", "torch.utils.data.")
"""Where the functions come from that processes run which wait for work."""
_KEPT = "_distdiag_recording"
_BEGIN = """
try:
    from distdiag import errors, recording, settings
except ImportError:  # it looks elsewhere for modules, and has to do its task all the same
    pass
else:
    with errors.guard("begin to record"):
        recording.begin(settings.Settings(**values))
"""


def install(recorder: Recorder) -> Undo:
    """Let processes that are about to be started record, too."""
    recorder.begin_again = partial(_begin_again, recorder)

    def forget() -> None:
        recorder.begin_again = lambda: None

    watching = when_imported(
        "multiprocessing.process", lambda module: observe(module.BaseProcess, "start", _Start(recorder))
    )
    return together([forget, watching])


class _Recording:
    """Begins to record in the process that unpickles it, which it does with the task that it was started for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        # A name that the process could not import would keep it from its task.
        return exec, (_BEGIN, {"values": dataclasses.asdict(self._settings)})


class _Start:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give the process what makes it record, or the word that it is a helper."""
        process = args[0]
        if self._recorder.identity.is_rank or process.daemon or _task(process).startswith(HELPERS):
            os.environ[HELPER_VARIABLE] = str(os.getpid())
        else:
            setattr(process, _KEPT, _Recording(self._recorder.settings))
        return process

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Leave nothing behind."""
        os.environ.pop(HELPER_VARIABLE, None)
        vars(token).pop(_KEPT, None)


def _task(process: Any) -> str:
    """Return the module of the function that a process runs; nothing where its class runs something else."""
    return str(getattr(getattr(process, "_target", None), "__module__", None) or "") + "."


def _begin_again(recorder: Recorder) -> Recorder | None:
    """Record a forked process that inherited a ``recorder``; return its own, None where it is a helper of a rank."""
    if recorder.identity.is_rank:
        return None
    recording.begin(recorder.settings)
    installed = recording.installed()
    return None if installed is None else installed.recorder
