"""Real ranks for tests: a program on several gloo processes, and what they recorded.

    ranks = launch(PROGRAM, tmp_path, world_size=2)
    assert ranks[0].code == 0, ranks[0].stderr
    assert [issued.op for issued in ranks[0].log.issued()] == ["all_reduce"]

A program is the text of a script. It tells the test something by printing one JSON object as its last line,
and marks lines that the test wants to find in call sites with a comment: ``loss.backward()  # LINE backward``.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distdiag import events
from tests.nursery import Order, Rank, shared_nursery
from tests.recordings import RankLog, read_logs

CAP_SECONDS = 150.0
"""No program of a test takes as long, even with other work on the machine."""
FIRST_PORT = 10_000
"""Servers that people run listen below it."""
USUAL_FIRST_OF_CONNECTIONS = 32_768
ROOT = Path(__file__).parents[1]
Process = subprocess.Popen[bytes] | Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One process of a program, after its end."""

    code: int
    stdout: str
    stderr: str
    script: Path
    log: RankLog
    crash: str
    """What faulthandler wrote beside the log."""

    @property
    def told(self) -> dict[str, Any]:
        """Return the JSON object that the program printed last."""
        assert self.stdout.strip(), self.stderr
        told: dict[str, Any] = json.loads(self.stdout.strip().splitlines()[-1])
        return told

    def line(self, mark: str) -> str:
        """Return ``file:line`` of the line that carries the comment ``LINE mark``."""
        return line_of(self.script, mark)


def line_of(file: str | Path, mark: str) -> str:
    """Return ``file:line`` of the line that carries the comment ``LINE mark``."""
    for number, text in enumerate(Path(file).read_text().splitlines(), 1):
        if text.endswith(f"# LINE {mark}"):
            return f"{file}:{number}"
    raise LookupError(mark)


def launch(
    program: str,
    directory: Path,
    *,
    world_size: int = 2,
    cap_seconds: float = CAP_SECONDS,
    variables: Mapping[str, str] | None = None,
    ranked: bool = True,
    forked: bool = False,
) -> list[Ended]:
    """Run a program on some ranks until all have ended; whoever is not done within the cap is killed.

    ``ranked=False`` starts the processes without the variables of a launcher. ``forked=True`` is for programs that do
    not depend on how an interpreter starts: it spares importing torch in each rank.
    """
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / "train.py"
    script.write_text(textwrap.dedent(program).lstrip())
    port = free_port()
    start = forked_rank if forked else fresh_rank
    processes: list[Process] = []
    for rank in range(world_size):
        own = launcher_variables(rank, world_size, port) if ranked else {}
        order = Order(
            script=script,
            variables={**surroundings(directory), **own, **(variables or {})},
            directory=directory,
            stdout=directory / f"{rank}.out",
            stderr=directory / f"{rank}.err",
        )
        processes.append(start(order))
    codes = _wait(processes, cap_seconds)
    logs = read_logs(directory / "logs")
    return [_ended(processes[rank].pid, code, rank, directory, logs) for rank, code in enumerate(codes)]


def forked_rank(order: Order) -> Rank:
    """Start a rank that has imported torch already."""
    return shared_nursery().start(order)


def fresh_rank(order: Order, behind: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    """Start a rank as an interpreter of its own, behind a command that it runs within."""
    with order.stdout.open("w") as stdout, order.stderr.open("w") as stderr:
        return subprocess.Popen(
            [*behind, sys.executable, order.script, *order.arguments],
            env={**os.environ, **order.variables},
            cwd=order.directory,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # so that the cap ends loader workers too
        )


def surroundings(directory: Path) -> dict[str, str]:
    """Return the variables that every recorded process of a test gets."""
    return {
        "PYTHONPATH": str(ROOT),
        "DISTDIAG_DIR": str(directory / "logs"),
        "DISTDIAG_RAISE": "1",
        "DISTDIAG_NATIVE_STACKS": "off",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
    }


def launcher_variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return what torchrun would set."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    """Return a port that nobody listens on, and that no connection gets by chance before somebody does."""
    while True:
        port = FIRST_PORT + secrets.randbelow(_first_of_connections() - FIRST_PORT)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _first_of_connections() -> int:
    """Return the first of the ports that the kernel hands out to connections."""
    ports = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(ports.read_text().split()[0]) if ports.exists() else USUAL_FIRST_OF_CONNECTIONS
    return first if first > FIRST_PORT else USUAL_FIRST_OF_CONNECTIONS


def _wait(processes: Sequence[Process], cap_seconds: float) -> list[int]:
    deadline = time.monotonic() + cap_seconds
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return [process.wait() for process in processes]


def _ended(pid: int, code: int, rank: int, directory: Path, logs: Mapping[str, RankLog]) -> Ended:
    log = _of_process(logs, pid)
    crash = directory / "logs" / f"{log[0]}.crash.txt"
    return Ended(
        code=code,
        stdout=(directory / f"{rank}.out").read_text(),
        stderr=(directory / f"{rank}.err").read_text(),
        script=directory / "train.py",
        log=log[1],
        crash=crash.read_text() if crash.exists() else "",
    )


def _of_process(logs: Mapping[str, RankLog], pid: int) -> tuple[str, RankLog]:
    for stem, log in logs.items():
        if any(header.pid == pid for header in log.of(events.Header)):
            return stem, log
    return "", RankLog(records=())
