"""Takes the stacks of this process: by py-spy with native frames where that is allowed, by Python otherwise."""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import traceback

import msgspec

from distdiag import events
from distdiag.errors import logger

PR_SET_PTRACER = 0x59616D61
ANY_PROCESS = ctypes.c_ulong(-1 & (1 << 64) - 1)
PY_SPY_SECONDS = 20.0
LOOK_UP_SECONDS = 0.2
OWN_THREADS = "distdiag-"


class _PySpyFrame(msgspec.Struct):
    name: str
    filename: str = ""
    line: int = 0


class _PySpyThread(msgspec.Struct):
    frames: list[_PySpyFrame]
    thread_name: str | None = None
    thread_id: int = 0


def take(*, native: bool, stopped: threading.Event | None = None) -> tuple[str, list[events.ThreadStack]]:
    """Return how the stacks were taken (``py-spy`` or ``python``) and the stack of each thread but our own.

    ``stopped`` ends the taking early: the process is about to exit.
    """
    if native:
        threads = _by_py_spy(stopped or threading.Event())
        if threads:
            return "py-spy", threads
    return "python", _by_python()


def _by_python() -> list[events.ThreadStack]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = []
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, str(ident))
        if not name.startswith(OWN_THREADS):
            frames = [
                f"{f.f_code.co_filename}:{line or 0} {f.f_code.co_name}" for f, line in traceback.walk_stack(frame)
            ]
            stacks.append(events.ThreadStack(thread=name, frames=frames[::-1]))
    return sorted(stacks, key=lambda stack: (stack.thread != "MainThread", stack.thread))


def _by_py_spy(stopped: threading.Event) -> list[events.ThreadStack]:
    executable = _py_spy()
    if executable is None:
        return []
    _allow_tracing()
    try:
        output = _output([*_limited(), executable, "dump", "--native", "--json", "--pid", str(os.getpid())], stopped)
        threads = msgspec.json.decode(output, type=list[_PySpyThread])
    except (OSError, msgspec.MsgspecError):
        logger.debug("distdiag could not take native stacks", exc_info=True)
        return []
    return [
        events.ThreadStack(
            thread=thread.thread_name or str(thread.thread_id),
            frames=[f"{frame.filename}:{frame.line} {frame.name}" for frame in reversed(thread.frames)],
        )
        for thread in threads
        if not (thread.thread_name or "").startswith(OWN_THREADS)
    ]


def _limited() -> list[str]:
    """Return what bounds a command from outside: py-spy halts this process, which then could not end py-spy."""
    limiter = shutil.which("timeout")
    return [limiter, "-s", "KILL", str(PY_SPY_SECONDS)] if limiter else []


def _output(command: list[str], stopped: threading.Event) -> bytes:
    """Return what a command writes, nothing if it had to be ended."""
    give_up = time.monotonic() + PY_SPY_SECONDS
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while True:
            try:
                return process.communicate(timeout=LOOK_UP_SECONDS)[0]
            except subprocess.TimeoutExpired:
                if stopped.is_set() or time.monotonic() > give_up:
                    process.terminate()  # the limiter passes it on, and the kernel lets this process go on


def _py_spy() -> str | None:
    beside = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _allow_tracing() -> None:
    """Let a child read this process where the kernel allows it to parents only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANY_PROCESS, 0, 0, 0)
