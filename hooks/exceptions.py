"""Watches exceptions: uncaught ones in any thread, out-of-memory errors even where they are caught, and others that the
program logs or prints while it handles them."""

import builtins
import functools
import logging
import sys
import threading
import time
import traceback
from types import ModuleType, TracebackType
from typing import Any

from distdiag import events
from distdiag.errors import guard
from distdiag.hooks._patch import Undo, replace, together, when_imported
from distdiag.recorder import Recorder

MAX_MESSAGE = 2000
MAX_CAUSES = 8
OUT_OF_MEMORY = ("can't allocate memory", "out of memory")
"""What torch's allocator for the host and CUDA's libraries say in a plain RuntimeError."""
OWN_THREADS = "distdiag-"
CAUGHT_APART_NS = 100_000_000
"""Less than this after one that was caught, another one of its type is not told: loops try again quickly. Of those that
are caught again and again ever fewer are told, so that they push nothing else out of the log."""
MOST_APART = 600
"""Times as long, at the most: a minute."""


def install(recorder: Recorder) -> Undo:
    """Record uncaught exceptions, the making of ``torch.OutOfMemoryError``, and those handled with a word."""
    return together(
        [
            _watch_main(recorder),
            _watch_threads(recorder),
            when_imported("torch", lambda module: _watch_out_of_memory(recorder, module)),
            _watch_caught(recorder),
        ]
    )


def _watch_caught(recorder: Recorder) -> Undo:
    """Record exceptions that are being handled when something is logged, or when their traceback is asked for."""
    told: dict[type[BaseException], tuple[int, int]] = {}

    def tell(error: BaseException | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, StopIteration):
            return
        now, kind = time.monotonic_ns(), type(error)
        moment, times = told.get(kind, (0, 0))
        if now - moment < CAUGHT_APART_NS * times:
            return
        told[kind] = now, min(times + 1, MOST_APART)
        recorder.write(
            events.Caught(
                time_ns=now,
                step=recorder.step,
                type=qualified(kind),
                message=str(error)[:MAX_MESSAGE],
                thread=threading.current_thread().name,
                # What a library caught inside itself has not come to the user's frames, which stand around it.
                frames=recorder.sites.user_frames(frames_of(error.__traceback__))
                or recorder.sites.at(sys._getframe(1)).frames,
            )
        )

    def told_by(function: Any) -> Any:
        @functools.wraps(function)
        def telling(*args: Any, **kwargs: Any) -> Any:
            error = sys.exc_info()[1]
            if error is not None:
                with guard("record an exception that was caught"):
                    if not _is_ours(args):
                        tell(error)
            return function(*args, **kwargs)

        return telling

    places = ((logging.Logger, "handle"), (traceback, "print_exc"), (traceback, "format_exc"))
    return together([replace(owner, name, told_by(getattr(owner, name))) for owner, name in places])


def _is_ours(args: tuple[Any, ...]) -> bool:
    return bool(args) and str(getattr(args[0], "name", "")).startswith(__package__.partition(".")[0])


def _watch_main(recorder: Recorder) -> Undo:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with guard("record an exception"):
            if not issubclass(kind, KeyboardInterrupt):
                record_exception(recorder, error, "uncaught")
        before(kind, error, trace)

    return replace(sys, "excepthook", hook)


def _watch_threads(recorder: Recorder) -> Undo:
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        with guard("record an exception of a thread"):
            name = args.thread.name if args.thread is not None else "unknown"
            if args.exc_value is not None and not name.startswith(OWN_THREADS):
                record_exception(recorder, args.exc_value, "thread", name)
        before(args)

    return replace(threading, "excepthook", hook)


def _watch_out_of_memory(recorder: Recorder, torch: ModuleType) -> Undo:
    kind = getattr(torch, "OutOfMemoryError", None)
    if kind is None:
        return lambda: None
    initialise = kind.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it stands in for the method
        initialise(self, *args, **kwargs)
        with guard("record an out-of-memory error"):
            recorder.write(
                events.Fault(
                    fault="out-of-memory",
                    time_ns=time.monotonic_ns(),
                    step=recorder.step,
                    type=qualified(type(self)),
                    message=str(self)[:MAX_MESSAGE],
                    where="raised",
                    thread=threading.current_thread().name,
                    frames=recorder.sites.at(sys._getframe(1)).frames,
                )
            )
            recorder.sample_memory(ran_out=True)

    return replace(kind, "__init__", __init__)


def record_exception(recorder: Recorder, error: BaseException, where: str, thread: str = "MainThread") -> None:
    """Write the fault record of an exception, with the user frames of its traceback."""
    causes, origins = causes_of(recorder, error.__cause__ or error.__context__, of=error)
    recorder.write(
        events.Fault(
            fault="out-of-memory" if _is_out_of_memory(error) else "exception",
            time_ns=time.monotonic_ns(),
            step=recorder.step,
            type=qualified(type(error)),
            message=str(error)[:MAX_MESSAGE],
            where=where,
            thread=thread,
            frames=recorder.sites.user_frames(frames_of(error.__traceback__)),
            causes=causes,
            origins=origins,
            direct_causes=_direct_causes(error),
        )
    )


def _direct_causes(error: BaseException) -> int:
    """Return how many exceptions in a row behind one were named as the cause of the one before."""
    count, seen = 0, {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen and count < MAX_CAUSES:
        error, count = error.__cause__, count + 1
        seen.add(id(error))
    return count


def qualified(kind: type[BaseException]) -> str:
    """Return the name of an exception's type, with its module unless it is built in."""
    return kind.__qualname__ if kind.__module__ == builtins.__name__ else f"{kind.__module__}.{kind.__qualname__}"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


def frames_of(trace: TracebackType | None) -> list[tuple[str, int, str]]:
    """Return file, line and function of the frames of a traceback, outermost first."""
    return [(frame.f_code.co_filename, line or 0, frame.f_code.co_name) for frame, line in traceback.walk_tb(trace)]


def causes_of(
    recorder: Recorder, error: BaseException | None, of: BaseException | None = None
) -> tuple[list[str], list[str]]:
    """Return an exception and those behind it, nearest first, and the innermost user frame of each.

    A barrier in ``finally`` hides the error that led there, and the line that raised it. ``of`` is the exception
    that all of them are behind: they may lead back to it.
    """
    causes: list[str] = []
    origins: list[str] = []
    seen = {id(of)}
    while error is not None and id(error) not in seen and len(causes) < MAX_CAUSES:
        seen.add(id(error))
        causes.append(f"{qualified(type(error))}: {str(error)[:MAX_MESSAGE]}")
        origins.append("".join(recorder.sites.user_frames(frames_of(error.__traceback__))[-1:]))
        error = error.__cause__ or error.__context__
    return causes, origins
