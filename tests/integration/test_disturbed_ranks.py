"""Ranks that are stopped, killed, cut off or out of disk: the others go on, or fail, exactly as without a recorder."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.nursery import Order
from tests.ranks import Process, forked_rank, free_port, fresh_rank, launcher_variables, surroundings

CAP_SECONDS = 240.0
STALL_SECONDS = 3.0
RANKS = 3
DISTURBED_AT = 30
"""Step after which a rank is disturbed."""
LAST_STEP = 120
NETWORK = "10.213.47"
"""Of a pair of devices that only this test's namespaces see."""
ERROR = r"^(?:\[rank\d+\]: )?([\w.]+(?:Error|Exception)): "

TRAINING = """
import datetime, os, sys, time
import torch, torch.distributed as dist
import distdiag
distdiag.install()
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(os.environ["GROUP_TIMEOUT"])))
rank = dist.get_rank()
torch.manual_seed(rank)
weights = torch.zeros(64)
steps = int(os.environ["STEPS"])
for step in range(steps):
    gradient = torch.randn(64) + 0.01 * weights
    for _ in range(int(os.environ.get("CALLS", "1"))):
        reduced = gradient.clone()
        dist.all_reduce(reduced)
    weights -= reduced
    distdiag.step()
    print("step", step, flush=True)
    time.sleep(float(os.environ["PAUSE"]))
print("weights", weights.double().sum().item().hex(), flush=True)
dist.destroy_process_group()
"""


@dataclass(slots=True)
class Job:
    """A training job under way, and what its ranks said."""

    directory: Path
    processes: list[Process] = field(default_factory=list)

    @property
    def logs(self) -> Path:
        """Return where its ranks log."""
        return self.directory / "logs"

    def said(self, rank: int) -> str:
        """Return what a rank printed so far."""
        return (self.directory / f"{rank}.out").read_text()

    def step(self, rank: int) -> int:
        """Return the last step that a rank made."""
        return max((int(number) for number in re.findall(r"^step (\d+)$", self.said(rank), re.M)), default=-1)

    def until_step(self, step: int, *ranks: int) -> None:
        """Wait until ranks made a step."""
        deadline = time.monotonic() + CAP_SECONDS
        while any(self.step(rank) < step for rank in ranks):
            assert time.monotonic() < deadline, [self.step(rank) for rank in range(RANKS)]
            time.sleep(0.05)

    def outcome(self, rank: int) -> tuple[int, str, str]:
        """Wait for the end of a rank; return its code, its last word on the weights, and the type of its error."""
        code = self.processes[rank].wait(CAP_SECONDS)
        weights = re.findall(r"^weights (.+)$", self.said(rank), re.M)
        errors = re.findall(ERROR, (self.directory / f"{rank}.err").read_text(), re.M)
        return code, weights[-1] if weights else "", errors[-1] if errors else ""


@contextlib.contextmanager
def training(
    directory: Path,
    *,
    recorded: bool,
    within: Sequence[Sequence[str]] = (),
    own: Mapping[int, Mapping[str, str]] | None = None,
    **variables: str,
) -> Iterator[Job]:
    """Train on some ranks; ``within`` is put before the command of each, ``own`` are variables of single ranks."""
    directory.mkdir()
    (directory / "logs").mkdir()
    script = directory / "train.py"
    script.write_text(textwrap.dedent(TRAINING))
    job = Job(directory)
    port = free_port()
    usual = {"GROUP_TIMEOUT": "60", "STEPS": str(LAST_STEP), "PAUSE": "0.02", "DISTDIAG": "on" if recorded else "off"}
    for rank in range(RANKS):
        order = Order(
            script=script,
            variables={
                **surroundings(directory),
                "DISTDIAG_STALL_AFTER": f"{STALL_SECONDS:g}",
                **launcher_variables(rank, RANKS, port),
                **usual,
                **variables,
                **(own or {}).get(rank, {}),
            },
            directory=directory,
            stdout=directory / f"{rank}.out",
            stderr=directory / f"{rank}.err",
        )
        job.processes.append(fresh_rank(order, within[rank]) if within else forked_rank(order))
    try:
        yield job
    finally:
        for process in job.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def distdiag(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """Begin a command of distdiag."""
    environment = {**os.environ, **surroundings(Path())}
    command = [sys.executable, "-m", "distdiag", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def lines_of(command: subprocess.Popen[bytes]) -> tuple[int, list[dict[str, Any]]]:
    """Wait for a command that writes lines of JSON; return its code and these."""
    try:
        told, _ = command.communicate(timeout=CAP_SECONDS)
    finally:
        command.kill()
    return command.returncode, [json.loads(line) for line in told.splitlines()]


def watching(job: Job) -> subprocess.Popen[bytes]:
    """Begin to watch a job until it stalls or loses a rank."""
    return distdiag("watch", job.logs, "--format", "json", "--exit-on", "stall,death", "--no-verdict")


def alarm_of(watch: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait until a watch ends with an alarm, and return that."""
    code, lines = lines_of(watch)
    assert (code, lines[-1]["event"]) == (1, "exit"), lines[-1]
    alarm: dict[str, Any] = lines[-1]["alarm"]
    return alarm


def test_stopped_rank_is_named_and_all_end_as_without_a_recorder(tmp_path: Path) -> None:
    outcomes = {}
    alarm: dict[str, Any] = {}

    for recorded in (True, False):
        with training(tmp_path / f"{recorded}", recorded=recorded) as job:
            watch = watching(job) if recorded else None
            job.until_step(DISTURBED_AT, 0, 1, 2)
            os.kill(job.processes[1].pid, signal.SIGSTOP)
            if watch is not None:
                alarm = alarm_of(watch)
            assert job.step(0) < LAST_STEP - 1
            os.kill(job.processes[1].pid, signal.SIGCONT)
            outcomes[recorded] = [job.outcome(rank) for rank in range(RANKS)]

    assert (alarm["kind"], alarm["ranks"]) == ("stall", [1])
    assert "its process is stopped" in " ".join(alarm["evidence"])
    assert [code for code, _, _ in outcomes[True]] == [0, 0, 0]
    assert outcomes[True] == outcomes[False]
    assert outcomes[True][0][1]


def test_killed_rank_is_named_and_the_others_fail_as_without_a_recorder(tmp_path: Path) -> None:
    outcomes = {}
    alarm: dict[str, Any] = {}

    for recorded in (True, False):
        with training(tmp_path / f"{recorded}", recorded=recorded, STEPS="100000") as job:
            watch = watching(job) if recorded else None
            job.until_step(DISTURBED_AT, 0, 1, 2)
            os.kill(job.processes[1].pid, signal.SIGKILL)
            outcomes[recorded] = [job.outcome(rank) for rank in range(RANKS)]
            if watch is not None:
                alarm = alarm_of(watch)

    assert (alarm["kind"], alarm["ranks"]) == ("death", [1])
    assert outcomes[True][1][0] == -signal.SIGKILL
    assert [code for code, _, _ in outcomes[True]] == [1, -signal.SIGKILL, 1]
    assert outcomes[True] == outcomes[False]
    assert outcomes[True][0][2]


@dataclass(frozen=True, slots=True)
class Cable:
    """Two network namespaces joined by one pair of devices, with nothing else in them."""

    near: Sequence[str]
    """What a command is put behind to run on the one side."""
    far: Sequence[str]

    def cut(self) -> None:
        """Let nothing through any more, without telling either side."""
        subprocess.run([*self.far, "ip", "link", "set", "far", "down"], check=True)


@contextlib.contextmanager
def cable() -> Iterator[Cable]:
    """Lay a cable; skip the test where that is not allowed."""
    holders = [subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) for _ in range(2)]
    near, far = (["nsenter", "-t", str(holder.pid), "-n"] for holder in holders)
    try:
        deadline = time.monotonic() + 5.0
        while any(_network_of(holder.pid) == _network_of(os.getpid()) for holder in holders):
            if time.monotonic() > deadline or any(holder.poll() is not None for holder in holders):
                pytest.skip("needs network namespaces")
            time.sleep(0.02)
        for command in (
            [*near, "ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(holders[1].pid)],
            *([*side, "ip", "link", "set", "lo", "up"] for side in (near, far)),
            [*near, "ip", "addr", "add", f"{NETWORK}.1/24", "dev", "near"],
            [*far, "ip", "addr", "add", f"{NETWORK}.2/24", "dev", "far"],
            [*near, "ip", "link", "set", "near", "up"],
            [*far, "ip", "link", "set", "far", "up"],
        ):
            if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
                pytest.skip("needs virtual network devices")
        yield Cable(near, far)
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def _network_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


@pytest.mark.skipif(not shutil.which("unshare") or not shutil.which("ip"), reason="needs network namespaces")
def test_rank_whose_network_is_cut_is_named_and_all_fail_as_without_a_recorder(tmp_path: Path) -> None:
    outcomes = {}
    alarm: dict[str, Any] = {}
    sides = {rank: {"GLOO_SOCKET_IFNAME": "far" if rank == 2 else "near"} for rank in range(RANKS)}

    for recorded in (True, False):
        with (
            cable() as laid,
            training(
                tmp_path / f"{recorded}",
                recorded=recorded,
                within=(laid.near, laid.near, laid.far),
                own=sides,
                MASTER_ADDR=f"{NETWORK}.1",
                STEPS="100000",
                GROUP_TIMEOUT="12",
            ) as job,
        ):
            watch = watching(job) if recorded else None
            job.until_step(DISTURBED_AT, 0, 1, 2)
            laid.cut()
            if watch is not None:
                alarm = alarm_of(watch)
            outcomes[recorded] = [job.outcome(rank) for rank in range(RANKS)]

    assert (alarm["kind"], alarm["ranks"]) == ("stall", [2])
    assert [code for code, _, _ in outcomes[True]] == [1, 1, 1]
    assert outcomes[True] == outcomes[False]
    assert outcomes[True][0][2]


@contextlib.contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[None]:
    """Put a small file system there; skip the test where that is not allowed."""
    directory.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)]
    if subprocess.run(["mount", *options], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("needs to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_full_disk_costs_records_of_its_rank_and_nothing_of_the_job(tmp_path: Path) -> None:
    outcomes = {}
    disk = tmp_path / "disk"

    with small_disk(disk, 3 << 17):
        for recorded in (True, False):
            with training(
                tmp_path / f"{recorded}",
                recorded=recorded,
                own={1: {"DISTDIAG_DIR": str(disk), "DISTDIAG_MAX_BYTES": str(2 << 20)}},
                STEPS="60",
                CALLS="40",
                PAUSE="0.01",
            ) as job:
                outcomes[recorded] = [job.outcome(rank) for rank in range(RANKS)]
            if recorded:
                left = shutil.disk_usage(disk).free
                for log in disk.glob("*.jsonl"):
                    shutil.copy(log, job.logs)
                told = distdiag("analyze", job.logs, "--format", "json")
                report = json.loads(told.communicate(timeout=CAP_SECONDS)[0])

    (dropped,) = [each for each in report["findings"] if each["name"] == "records-dropped"]
    assert [code for code, _, _ in outcomes[True]] == [0, 0, 0]
    assert outcomes[True] == outcomes[False]
    assert left < 1 << 18  # which one more segment would take
    assert "of rank 1 found no space on the disk and are lost" in dropped["summary"]
    assert report["data_quality"]["dropped_records"]["1"] > 500
    assert not [each for each in report["findings"] if each["code"].startswith("DD3")]  # it is neither stuck nor dead
