"""A process that has imported torch once, and from which the ranks of fault programs are forked.

Importing torch takes seconds of processor time for each of hundreds of ranks; a fork takes none. What is forked is a
process of its own with its own session, output and variables, that runs its script from the beginning to an ordinary
end of the interpreter. It answers one line of JSON for each rank that it starts and that ends.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

PREPARED = (
    "torch._dynamo",
    "torch.distributed.algorithms.join",
    "torch.distributed.checkpoint",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.utils.data",
)
"""What programs use and takes long to import."""


ROOT = Path(__file__).parents[2]
PROGRAM = "from tests.faults.nursery import serve; import runpy; runpy.run_path(serve(), run_name='__main__')"
"""Text has no file, so that a rank's call sites begin with its own script."""


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

    def start(
        self, script: Path, name: str, variables: Mapping[str, str], directory: Path, output: Path
    ) -> tuple[int, "Future[int]"]:
        """Start a script; return its process, which leads a group of its own, and its future exit code."""
        request = {"script": str(script), "name": name, "env": dict(variables), "cwd": str(directory)}
        pid: Future[int] = Future()
        with self._lock:
            self._asked.append(pid)
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request | {"output": str(output)}) + "\n")
            self._process.stdin.flush()
        return pid.result(), self._codes[pid.result()]

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


def serve() -> str:
    """Fork a rank for each line of standard input, until it ends; return, in a rank, the script that it has to run."""
    for module in PREPARED:
        importlib.import_module(module)
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
    os.environ.update(request["env"])
    sys.path[:0] = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [request["script"], request["name"]]
    return str(request["script"])
