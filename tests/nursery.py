"""A process that has imported torch once, and from which ranks of tests are forked.

Importing torch takes seconds of processor time for each of hundreds of ranks; a fork takes none. What is forked is a
process of its own with its own session, output and variables, that runs its script from the beginning to an ordinary
end of the interpreter. It answers one line of JSON for each rank that it starts and that ends.

Variables that the interpreter or torch read when they start, like ``PYTHONFAULTHANDLER``, come too late there.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

PREPARED = (
    "distdiag.hooks",
    "distdiag.hooks._operators",
    "torch._dynamo",
    "torch.distributed.algorithms.join",
    "torch.distributed.checkpoint",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.utils.data",
)
"""What programs use and takes long to import; recording begins in the rank, whose import patches nothing."""

ROOT = Path(__file__).parents[1]
PROGRAM = "from tests.nursery import serve; import runpy; runpy.run_path(serve(), run_name='__main__')"
"""Text has no file, so that a rank's call sites begin with its own script."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A process that was forked, which leads a group of its own; waited for like one of ``subprocess``."""

    pid: int
    _code: Future[int]

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._code.result() if self._code.done() else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; ``TimeoutExpired`` where it does not come."""
        try:
            return self._code.result(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to start."""

    script: Path
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Beside those of this process."""
    directory: Path
    stdout: Path
    stderr: Path


class Nursery:
    """The other side of the process: starts ranks and tells how they ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},  # read when torch is imported
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()
        self._asked: list[Future[int]] = []
        self._codes: dict[int, Future[int]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, order: Order) -> Rank:
        """Start a script."""
        request = {
            "argv": [str(order.script), *order.arguments],
            "env": {**os.environ, **order.variables},
            "cwd": str(order.directory),
            "output": [str(order.stdout), str(order.stderr)],
        }
        pid: Future[int] = Future()
        with self._lock:
            self._asked.append(pid)
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return Rank(pid.result(), self._codes[pid.result()])

    def close(self) -> None:
        """Start nothing more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "code" in told:
                self._codes[told["pid"]].set_result(told["code"])
            else:
                self._codes[told["pid"]] = Future()
                self._asked.pop(0).set_result(told["pid"])


@cache
def shared_nursery() -> Nursery:
    """Return the one that all tests of this process share; it ends with it."""
    nursery = Nursery()
    atexit.register(nursery.close)
    return nursery


def serve() -> str:
    """Fork a rank for each line of standard input, until it ends; return, in a rank, the script that it has to run."""
    for module in PREPARED:
        importlib.import_module(module)
    _leave_libraries_undestroyed()
    gc.collect()
    gc.freeze()  # or each rank that ends would look through, and so copy, all that was imported: 0.8 s
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    for line in sys.stdin:
        request = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            return _become(request)
        _tell(pid=pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    sys.exit(0)


def _leave_libraries_undestroyed() -> None:
    """Let a rank end once its interpreter has: what is static in torch takes 0.2 s to destroy, and copies its pages."""
    libc = ctypes.CDLL(None)
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)  # comes before what was loaded earlier


def _tell(**told: Any) -> None:
    os.write(1, (json.dumps(told) + "\n").encode())


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _tell(pid=pid, code=os.waitstatus_to_exitcode(status))


def _become(request: Mapping[str, Any]) -> str:
    """Turn a forked process into the rank that was asked for, and return its script."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:0] = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    for stream, file in enumerate(request["output"], 1):
        # Those that are one file are written to in turn, not over one another.
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = request["argv"]
    return sys.argv[0]
