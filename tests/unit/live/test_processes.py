"""What a watch knows of the processes of its own host, and of launches that have no name."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distdiag.live.job import Job
from tests.watching import Watched

TRACES = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
print(libc.ptrace(16, int(sys.argv[1]), 0, 0), flush=True)
time.sleep(60)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def job_of(pid: int, directory: Path) -> Job:
    """Return a job whose only rank is a process of this host that began before it."""
    watched = Watched(directory, world_size=1)
    (log,) = watched.logs
    log.header.host, log.header.pid, log.header.wall_ns = socket.gethostname(), pid, time.time_ns() + 1_000_000_000
    watched.train(steps=1)
    watched.look()
    return watched.watch.job


def until(pid: int, state: str) -> None:
    """Wait for a process to be in a state, as the kernel names it."""
    deadline = time.monotonic() + 10.0
    while state not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_process_whose_stacks_are_being_read_is_not_stopped(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    job = job_of(sleeper.pid, tmp_path)
    tracing = subprocess.Popen([sys.executable, "-c", TRACES, str(sleeper.pid)], stdout=subprocess.PIPE)
    try:
        assert tracing.stdout is not None
        if int(tracing.stdout.readline()):
            pytest.skip("processes may not be traced here")
        until(sleeper.pid, "t (tracing stop)")

        assert job.process_of(job.ranks[0]) == "traced"
    finally:
        tracing.kill()
        tracing.communicate()


def test_process_that_was_stopped_is_told_so(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    job = job_of(sleeper.pid, tmp_path)

    os.kill(sleeper.pid, signal.SIGSTOP)
    until(sleeper.pid, "T (stopped)")  # a signal takes effect when its process would run next

    assert job.process_of(job.ranks[0]) == "stopped"


def test_ranks_that_made_up_names_for_their_launch_are_one_job(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=4)
    for log in watched.logs:
        log.header.started_by = 77 if log.rank < 2 else None
        log.header.run = f"{log.header.host}-{log.header.started_by or log.header.pid}"

    watched.train(steps=3)
    watched.look()

    assert list(watched.watch.job.ranks) == [0, 1, 2, 3]
    assert {group.label: len(group.members) for group in watched.watch.job.groups} == {"default_pg": 4}
