"""``distdiag stacks``: of dumps, of logs, and of living processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distdiag.commands import _processes

PROGRAM = """
import os, sys, time

def read_shard():
    print("ready", flush=True)
    time.sleep(60)

def wait():
    print("ready", flush=True)
    time.sleep(60)

read_shard() if os.environ["RANK"] == "1" else wait()
"""


def distdiag(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distdiag", "stacks", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "COLUMNS": "100"},
    )


@contextmanager
def ranks(count: int, tmp_path: Path) -> Iterator[list[int]]:
    """Living ranks that stand still, by their process ids."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    started = [
        subprocess.Popen(
            [sys.executable, str(program)],
            stdout=subprocess.PIPE,
            env={**os.environ, "RANK": str(rank), "MASTER_PORT": str(os.getpid())},
        )
        for rank in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def may_trace() -> bool:
    """Whether one process may look at another here."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"]) as process:
        try:
            for _ in range(20):
                done = subprocess.run(
                    [_processes._py_spy(), "dump", "--pid", str(process.pid)], capture_output=True, timeout=90
                )
                if done.returncode == 0:
                    return True
                time.sleep(0.1)
            return False
        finally:
            process.kill()


def test_stacks_of_dumps_are_merged(tmp_path: Path) -> None:
    for rank in range(3):
        where = "read_shard (data.py:3)" if rank == 1 else "step (train.py:88)"
        (tmp_path / f"rank{rank}.txt").write_text(
            f'Thread 1 (idle): "MainThread"\n    {where}\n    main (train.py:9)\n'
        )

    done = distdiag(str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Stacks of the main thread",
        "  0-2    main (train.py:9)",
        "    0,2  step (train.py:88)",
        "    1    read_shard (data.py:3)",
    ]


def test_json_holds_every_frame(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_text('Thread 1 (idle): "MainThread"\n    main (train.py:9)\n')

    content = json.loads(distdiag(str(tmp_path), "--format", "json").stdout)

    assert content["schema"] == "distdiag.stacks/1"
    assert content["jobs"][0]["stacks"][0]["ranks"] == [0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give a folder of logs, or --pid, or --local"),
        (("--local", "--pid", "1"), "give a folder of logs, or --pid, or --local"),
        (("nowhere",), "no such file or directory"),
        (("--pid", "4194304"), "there is no process 4194304"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_line(arguments: tuple[str, ...], says: str) -> None:
    done = distdiag(*arguments)

    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not may_trace(), reason="no process may look at another here")
def test_living_processes_are_looked_at(tmp_path: Path) -> None:
    with ranks(3, tmp_path) as pids:
        done = distdiag(*(word for pid in pids for word in ("--pid", str(pid))))

    assert done.returncode == 0, done.stderr
    assert "wait (train.py:" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "read_shard (train.py:" in line]
    assert line.split()[0] == "1"


def test_the_ranks_of_this_host_are_found_and_told_apart_by_launch(tmp_path: Path) -> None:
    with ranks(2, tmp_path) as pids:
        found = [process for process in _processes.ranks_here() if process.pid in pids]

    assert [process.rank for process in found] == [0, 1]
    assert {process.job for process in found} == {found[0].job}
    assert str(os.getpid()) in found[0].job


def test_a_process_that_may_not_be_read_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = tmp_path / "py-spy"
    refusing.write_text(
        "#!/bin/sh\necho 'Error: Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n"
    )
    refusing.chmod(0o755)
    monkeypatch.setattr(_processes, "_py_spy", lambda: str(refusing))

    with pytest.raises(Exception, match="py-spy cannot read process 1") as caught:
        _processes.look([_processes.Process(pid=1, rank=3)], native=False)

    assert "not allowed" in str(caught.value)
    assert "SYS_PTRACE" in getattr(caught.value, "hint", "")
