"""Watches how the process ends: orderly, by ``os._exit``, by a fatal signal, or without a word.

Neither ``sys.exit`` in the main thread nor an interruption by the keyboard reaches ``sys.excepthook`` as an error, and
when the interpreter ends it has forgotten both: where a process set out to end is noted before.
"""

import atexit
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, NoReturn

from distdiag import ancestry, events
from distdiag.errors import guard
from distdiag.hooks._forks import around_forks
from distdiag.hooks._patch import Undo, observe, replace, together
from distdiag.hooks.exceptions import MAX_MESSAGE, causes_of, frames_of, qualified, record_exception
from distdiag.journal import within_patience
from distdiag.recorder import Recorder

FAILURE = 1
"""Code with which the interpreter ends when ``sys.exit`` is given a message."""
CRASH_ENDING = ".crash.txt"
LAST = -1
"""Priority of what multiprocessing runs after all that users gave a priority of their own."""


def install(recorder: Recorder) -> Undo:
    """Record the end of the process and let faulthandler write crashes beside the log."""
    departures = Departures(recorder)
    ends = [_watch_interpreter_exit(recorder, departures), _watch_hard_exit(recorder), _watch_signals(recorder)]
    return together([*ends, departures.watch()])


def _watch_interpreter_exit(recorder: Recorder, departures: "Departures") -> Undo:
    def leave() -> None:
        # Undoing comes last: by ``uninstall``, or by atexit when the interpreter ends.
        ending = sys.is_finalizing() or recorder.exiting
        recorder.write(_end(departures.last(), recorder) if ending else _exit("uninstall", None, recorder))

    return leave


def _watch_hard_exit(recorder: Recorder) -> Undo:
    leave = os._exit

    def _exit_recorded(status: int) -> NoReturn:
        if os.getpid() == recorder.pid:
            with guard("record os._exit"):
                recorder.write(_exit("os._exit", status, recorder))
                recorder.journal.close()
        leave(status)

    return replace(os, "_exit", _exit_recorded)


def _watch_signals(recorder: Recorder) -> Undo:
    """Let faulthandler tell SIGABRT and SIGSEGV from SIGKILL, and mark survivors that were torn down."""
    owned_by_user = faulthandler.is_enabled()
    path = recorder.beside(CRASH_ENDING)
    # On a network file system the open could hang, and training must not wait for it.
    file = within_patience(lambda: open(path, "a"), None)  # noqa: SIM115 - open until the process is gone
    if file is None:
        return lambda: None
    recorder.crash_file = file
    if not owned_by_user:
        faulthandler.enable(file)
    faulthandler.register(signal.SIGTERM, file, all_threads=False, chain=True)
    forget_handlers = observe(signal, "signal", _Handled(recorder))

    def rename() -> None:
        nonlocal path
        path = path.rename(recorder.beside(CRASH_ENDING))

    recorder.renamed = rename

    def let_go() -> None:
        recorder.crash_file = None
        faulthandler.unregister(signal.SIGTERM)
        if not owned_by_user:
            faulthandler.disable()

    forget = around_forks(after_in_child=let_go)

    def undo() -> None:
        forget()
        forget_handlers()
        let_go()
        file.close()
        if os.getpid() == recorder.pid and path.exists() and path.stat().st_size == 0:
            path.unlink()

    return undo


class _Handled:
    """Keeps SIGTERM in view where the script handles it: its own handler would stand in the place of the dump's."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if not args or args[0] != signal.SIGTERM or self._recorder.crash_file is None:
            return False
        # Taking the dump's handler out puts the one before it back: the script's has to come after that.
        faulthandler.unregister(signal.SIGTERM)
        return True

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        file = self._recorder.crash_file
        if token and file is not None:
            faulthandler.register(signal.SIGTERM, file, all_threads=False, chain=True)


def when_ending(recorder: Recorder, leave: Callable[[], None]) -> Undo:
    """Run ``leave`` at the orderly end of the process, also of one that multiprocessing started.

    That one never tells ``sys.excepthook`` what it died of, and a forked one skips the interpreter's own exit.
    """
    atexit.register(leave)
    forget: list[Undo] = []

    def leave_child_so(_: Recorder) -> None:
        from multiprocessing.util import Finalize

        if os.getpid() == recorder.pid:
            forget.append(Finalize(None, _leave_child, args=(recorder, leave), exitpriority=LAST).cancel)

    if ancestry.started_by() is not None:
        leave_child_so(recorder)
        if ancestry.is_beginning():  # before its task begins, a process of a fork server forgets what it was to do
            from multiprocessing.util import register_after_fork

            register_after_fork(recorder, leave_child_so)

    def undo() -> None:
        atexit.unregister(leave)
        for each in forget:
            each()

    return undo


def _leave_child(recorder: Recorder, leave: Callable[[], None]) -> None:
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and error.code:
        error = error.__context__  # torch's wrapper tells the parent of an exception, then exits with 1
    with guard("record the exception that ends a child"):
        if error is not None and not isinstance(error, SystemExit | KeyboardInterrupt):
            record_exception(recorder, error, "uncaught")
    leave()


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


def _end(leaving: Leaving | None, recorder: Recorder) -> events.Event:
    """Return the record of an orderly end, with what set out for it where that is known."""
    if leaving is None:
        return _exit("interpreter", None, recorder)
    return events.Fault(
        fault="exit",
        time_ns=time.monotonic_ns(),
        step=recorder.step,
        type=leaving.type,
        message=leaving.message,
        where="interpreter",
        frames=list(leaving.frames),
        causes=list(leaving.causes),
        origins=list(leaving.origins),
        code=leaving.code,
    )


def _exit(where: str, code: int | None, recorder: Recorder) -> events.Event:
    return events.Fault(fault="exit", time_ns=time.monotonic_ns(), step=recorder.step, where=where, code=code)
