"""The black box for distributed PyTorch training.

``install()`` records what this process does with its process groups, its steps and its faults into a log
of its own; ``distdiag analyze`` reads the logs of all ranks and says which rank broke what, and where.
"""

import contextlib
import numbers
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from distdiag import recording
from distdiag.errors import guard

if TYPE_CHECKING:
    from distdiag.notebook import Loaded

__version__ = "0.1.0"
__all__ = ["decision", "install", "is_recording", "load", "phase", "step", "uninstall"]


def install(
    directory: str | os.PathLike[str] | None = None,
    *,
    stall_after: float | None = None,
    max_bytes: int | None = None,
) -> None:
    """Begin to record this process; calling it again changes nothing.

    ``directory`` is where the logs of all ranks go (``DISTDIAG_DIR``, else ``distdiag_logs``); ``stall_after``
    the seconds without progress that count as a stall (``DISTDIAG_STALL_AFTER``, else 60); ``max_bytes`` the cap
    of one rank's log (``DISTDIAG_MAX_BYTES``, else 256 MiB). With ``DISTDIAG=off`` nothing is recorded and nothing
    is patched. It works before and after ``init_process_group``, and without any distributed training, and it
    never raises into the job. Ranks that this process starts by multiprocessing are recorded as well; where a rank
    starts helpers that import its main module anew, it does nothing in these.
    """
    from distdiag import settings

    if not settings.is_off():
        with guard("begin to record"):
            recording.begin(settings.resolve(directory, stall_after=stall_after, max_bytes=max_bytes))


def uninstall() -> None:
    """End recording and take every hook off; nothing stays patched."""
    recording.end()


def is_recording() -> bool:
    """Return whether this process is being recorded."""
    return recording.installed() is not None


def step(**facts: Any) -> None:
    """Say that a training step ended, with facts about it: ``tokens``, ``samples``, ``loss``, ``lr`` …

    Right after an optimizer's step, which ends a step by itself, it adds the facts to that step. A tensor on a
    device is not read: that would wait for the device.
    """
    installed = recording.installed()
    if installed is not None:
        with guard("record a step"):
            installed.recorder.loop.mark(plain(facts))


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Name what the rank does inside the block: ``tokenize``, ``evaluate``, ``save`` …

    A rank that peers wait for while it is inside a phase is late, not lost.
    """
    installed = recording.installed()
    begun = None
    if installed is not None:
        with guard("begin a phase"):
            begun = installed.recorder.enter_user_phase(name)
    failed = True
    try:
        yield
        failed = False
    finally:
        if installed is not None and begun is not None:
            with guard("end a phase"):
                installed.recorder.leave_user_phase(begun, failed=failed)


def decision(name: str, value: Any) -> None:
    """Record a decision that this rank took by itself: to stop, to save, to skip; ranks that differ are found."""
    installed = recording.installed()
    if installed is not None:
        with guard("record a decision"):
            installed.recorder.decide(name, plain({name: value})[name])


def load(path: str | os.PathLike[str]) -> "Loaded":
    """Return the run in a folder of logs, for notebooks: ``load(path).frames``, ``.findings()``, ``.table("call")``.

    Raises ``DistdiagError`` when there is nothing to analyse. It loads pandas: for analysis, not for training.
    """
    from distdiag import notebook

    return notebook.load(path)


def plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as JSON can hold them; what is neither number, text nor list of these becomes its type's name."""
    return {str(name): _plain(value) for name, value in facts.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if getattr(value, "is_cpu", False) and value.numel() == 1:
        value = value.item()
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if number - number == 0 else str(number)  # JSON has no NaN and no infinity
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return plain(value)
    return f"<{type(value).__name__}>"
