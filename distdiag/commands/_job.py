"""A small job of real processes on this machine, as a launcher would start and end it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

GRACE_SECONDS = 2.0
"""Once a rank has failed, how long after the newest exit the others may go on: launchers end them at once."""
STALL_AFTER_SECONDS = 4
"""Below the 5 s after which the collectives of the demo time out, so that the stacks of a stall are there."""
START_SECONDS = 60.0
"""Until then the ranks may import torch and find one another, on a machine that is busy."""
POLL_SECONDS = 0.2


@contextlib.contextmanager
def start(script: Path, logs: Path, *, ranks: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start ``script`` on so many ranks, recorded into ``logs``; none of them is left at the end."""
    port = _free_port()
    command = [sys.executable, "-m", "distdiag", "run", "--dir", str(logs), str(script)]
    with (logs / "output.txt").open("wb") as output:
        processes = [
            subprocess.Popen(command, env=_environment(rank, ranks, port), stdout=output, stderr=output)
            for rank in range(ranks)
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.wait()


def wait(
    processes: list[subprocess.Popen[bytes]], *, cap_seconds: float, on_poll: Callable[[float, list[int | None]], bool]
) -> None:
    """Wait until all ranks have ended; after a failure the survivors are terminated, as launchers do.

    ``on_poll`` gets the seconds since the beginning and the exit code of each rank that has ended, and returns
    whether training has begun: the cap counts from then on.
    """
    begin = newest_exit = time.monotonic()
    deadline = begin + START_SECONDS
    training, running = False, len(processes)
    while (now := time.monotonic()) < deadline:
        codes = [process.poll() for process in processes]
        if on_poll(now - begin, codes) and not training:
            training, deadline = True, now + cap_seconds
        if codes.count(None) < running:
            running, newest_exit = codes.count(None), now
        if not running or (any(codes) and now > newest_exit + GRACE_SECONDS):
            break
        time.sleep(POLL_SECONDS)
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets, for processes that share one machine."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "DISTDIAG_STALL_AFTER": str(STALL_AFTER_SECONDS),
    }
