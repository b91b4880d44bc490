"""How long a process has waited for a processor."""

import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from distdiag.steps import RunQueue

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell")

SHARING = """
    import os, time
    from distdiag.steps import RunQueue

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    other = os.fork()
    deadline = time.monotonic() + 0.6
    if other == 0:  # its own queue, not that of the process it was forked from
        queue = RunQueue()
        before = queue.waited_ns()
    while time.monotonic() < deadline:
        pass
    if other == 0:
        os.write(1, str(queue.waited_ns() - before).encode())
        os._exit(0)
    os.waitpid(other, 0)
"""


def test_two_processes_on_one_processor_wait_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SHARING)], capture_output=True, text=True, timeout=150)

    assert int(done.stdout) > 100_000_000, done.stderr


def test_waiting_only_grows() -> None:
    queue = RunQueue()

    first, second = queue.waited_ns(), queue.waited_ns()

    assert first is not None
    assert second is not None
    assert 0 < first <= second


def test_its_file_is_closed_with_it() -> None:
    before = len(os.listdir("/proc/self/fd"))
    queue = RunQueue()
    assert len(os.listdir("/proc/self/fd")) == before + 1

    del queue
    gc.collect()

    assert len(os.listdir("/proc/self/fd")) == before
