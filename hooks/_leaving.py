"""Notes from where a process set out to end: ``sys.exit`` in the main thread, or an interruption by the keyboard.

Neither reaches ``sys.excepthook`` as an error, and when the interpreter ends it has forgotten both.
"""

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, NoReturn

from distdiag.errors import guard
from distdiag.hooks._patch import Undo, replace, together
from distdiag.hooks.exceptions import MAX_MESSAGE, causes_of, frames_of, qualified
from distdiag.recorder import Recorder

FAILURE = 1
"""Code with which the interpreter ends when ``sys.exit`` is given a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """The last time that the main thread set out to end its process."""

    code: int | None
    type: str | None
    """What interrupted it, None for ``sys.exit``."""
    message: str | None
    frames: Sequence[str]
    causes: Sequence[str]
    """The exceptions that were being handled, nearest first."""
    origins: Sequence[str]
    progress: tuple[int, int]
    """Calls issued and step at that moment: who went on did not leave."""


class Departures:
    """Remembers the last ``Leaving``."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last: Leaving | None = None

    def last(self) -> Leaving | None:
        """Return how the process set out to end, None where it went on after it or never did."""
        last = self._last
        return last if last is not None and last.progress == self._progress() else None

    def watch(self) -> Undo:
        """Patch ``sys.exit`` and ``sys.excepthook``."""
        return together([self._watch_exit(), self._watch_interruption()])

    def _watch_exit(self) -> Undo:
        leave = sys.exit

        def exit(status: Any = None, /) -> NoReturn:
            with guard("note sys.exit"):
                if threading.current_thread() is threading.main_thread():
                    self._note_exit(status, sys._getframe(1))
            leave(status)

        return replace(sys, "exit", exit)

    def _note_exit(self, status: Any, frame: FrameType) -> None:
        told = status is not None and not isinstance(status, int)
        causes, origins = causes_of(self._recorder, sys.exc_info()[1])
        self._last = Leaving(
            code=FAILURE if told else int(status or 0),
            type=None,
            message=str(status)[:MAX_MESSAGE] if told else None,
            frames=self._recorder.sites.at(frame).frames,
            causes=causes,
            origins=origins,
            progress=self._progress(),
        )

    def _watch_interruption(self) -> Undo:
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            with guard("note an interruption"):
                if issubclass(kind, KeyboardInterrupt):
                    self._last = Leaving(
                        code=None,
                        type=qualified(kind),
                        message=None,
                        frames=self._recorder.sites.user_frames(frames_of(trace)),
                        causes=[],
                        origins=[],
                        progress=self._progress(),
                    )
            before(kind, error, trace)

        return replace(sys, "excepthook", hook)

    def _progress(self) -> tuple[int, int]:
        return self._recorder.calls, self._recorder.step
