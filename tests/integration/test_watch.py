"""``distdiag watch`` on real processes and in a real terminal."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import ROOT, free_port, launcher_variables, surroundings
from tests.watching import Watched

CAP_SECONDS = 240.0
STUCK = """
    import time
    import torch, torch.distributed as dist
    import distdiag
    distdiag.install()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for step in range(1000):
        if dist.get_rank() == 1 and step == 3:
            time.sleep(600)  # the rank that the others wait for
        dist.all_reduce(torch.ones(4))
        distdiag.step()
"""
SHELL = "/bin/sh"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "distdiag", "watch", *map(str, arguments)]


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, **surroundings(directory), "DISTDIAG_STALL_AFTER": "3"}


@contextlib.contextmanager
def running(program: str, directory: Path, world_size: int) -> Iterator[Path]:
    """Run a program on some ranks for as long as somebody looks; give the directory of its logs."""
    script = directory / "train.py"
    script.write_text(textwrap.dedent(program))
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, script],
            env={**environment(directory), **launcher_variables(rank, world_size, port)},
            start_new_session=True,
        )
        for rank in range(world_size)
    ]
    try:
        yield directory / "logs"
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_stall_of_a_real_job_ends_the_watch_with_the_verdict(tmp_path: Path) -> None:
    told = tmp_path / "told.json"

    with running(STUCK, tmp_path, world_size=3) as logs:
        done = subprocess.run(
            command(logs, "--format", "json", "--exit-on", "stall,death", "--on-alarm", f"cat > {told}"),
            stdout=subprocess.PIPE,
            env=environment(tmp_path),
            timeout=CAP_SECONDS,
            check=False,
        )

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (raised,) = [line["alarm"] for line in lines if line["event"] == "raised"]
    last = lines[-1]
    assert done.returncode == 1
    assert raised["ranks"] == [1]
    assert raised["limit_seconds"] >= 3.0
    assert (last["event"], last["alarm"]["kind"]) == ("exit", "stall")
    assert last["alarm"]["verdict"]["name"] == "rank-missing"
    assert last["alarm"]["verdict"]["culprits"] == [1]
    notice = json.loads(told.read_text())
    assert (notice["event"], notice["alarm"]["kind"], notice["alarm"]["ranks"]) == ("raised", "stall", [1])


def test_every_rank_of_a_real_job_writes_its_stacks_when_asked(tmp_path: Path) -> None:
    ctl = [sys.executable, "-m", "distdiag", "ctl"]

    with running(STUCK, tmp_path, world_size=2) as logs:
        deadline = time.monotonic() + CAP_SECONDS
        while sum(b'"kind":"call"' in path.read_bytes() for path in logs.glob("*.jsonl")) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        done = subprocess.run([*ctl, logs, "stacks"], capture_output=True, text=True, timeout=CAP_SECONDS, check=False)
        tree = subprocess.run(
            [sys.executable, "-m", "distdiag", "stacks", logs],
            capture_output=True,
            text=True,
            timeout=CAP_SECONDS,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    assert "2 of 2 ranks have done so" in done.stdout
    assert "train.py" in tree.stdout


def test_ranks_that_do_not_answer_are_named(tmp_path: Path) -> None:
    stuck_logs(tmp_path)

    done = subprocess.run(
        [sys.executable, "-m", "distdiag", "ctl", tmp_path, "detail", "up", "--ranks", "1-2", "--wait", "0.5"],
        capture_output=True,
        text=True,
        timeout=CAP_SECONDS,
        check=False,
    )

    assert done.returncode == 1
    assert "0 of 2 ranks have done so" in done.stdout
    assert "no answer from ranks 1-2" in done.stderr


def stuck_logs(directory: Path) -> Watched:
    """Logs of four ranks, the third of which never came."""
    watched = Watched(directory, world_size=4)
    watched.train(steps=30, own={1: 0.12}, facts={"tokens": 512})
    for log in watched.logs.but(2):
        log.all_reduce("train.py:10 step", pending=True)
    watched.logs[2].batch("data.py:8 read", pending=True)
    watched.beat(20, waiting=(31,))
    watched.look()
    return watched


def test_once_shows_the_job_and_says_by_its_code_that_something_is_wrong(tmp_path: Path) -> None:
    stuck_logs(tmp_path)

    done = subprocess.run(
        command(tmp_path, "--once", "--no-verdict"), capture_output=True, text=True, timeout=CAP_SECONDS, check=False
    )

    assert done.returncode == 1, done.stderr
    assert "STALL no rank made progress" in done.stdout
    assert "rank 2 is in its data loader" in done.stdout
    assert "\x1b" not in done.stdout


def test_once_as_json_is_one_line(tmp_path: Path) -> None:
    stuck_logs(tmp_path)

    done = subprocess.run(
        command(tmp_path, "--once", "--no-verdict", "--format", "json"), stdout=subprocess.PIPE, timeout=CAP_SECONDS
    )

    (line,) = done.stdout.splitlines()
    state: dict[str, Any] = json.loads(line)
    assert (state["schema"], state["event"], len(state["ranks"])) == ("distdiag.watch/1", "state", 4)
    assert state["alarms"][0]["ranks"] == [2]


def test_agent_sums_up_its_host_for_a_watch_of_many(tmp_path: Path) -> None:
    stuck_logs(tmp_path)
    summary = tmp_path / ".distdiag" / "nodes" / "node0.json"
    agent = [sys.executable, "-m", "distdiag", "agent", str(tmp_path), "--host", "node0", "--interval", "0.2"]

    running_agent = subprocess.Popen(agent)
    try:
        deadline = time.monotonic() + CAP_SECONDS
        while not summary.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        done = subprocess.run(
            command(tmp_path, "--agents", "--once", "--no-verdict", "--format", "json"),
            stdout=subprocess.PIPE,
            timeout=CAP_SECONDS,
            check=False,
        )
    finally:
        running_agent.send_signal(signal.SIGINT)
        code = running_agent.wait(CAP_SECONDS)

    state: dict[str, Any] = json.loads(done.stdout)
    assert (code, done.returncode) == (0, 1)
    assert state["hosts"] == {"node0": 4}
    assert (state["alarms"][0]["kind"], state["alarms"][0]["ranks"]) == ("stall", [2])


def test_watch_ends_with_the_job(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=5)
    for log in watched.logs:
        log.exit()
    watched.look()

    done = subprocess.run(
        command(tmp_path, "--format", "json", "--exit-on", "stall,death"), stdout=subprocess.PIPE, timeout=CAP_SECONDS
    )

    last = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0
    assert (last["ended"], last["health"]) == (True, "all 2 ranks have ended")


def test_deaths_of_all_ranks_at_once_are_told_before_the_watch_ends(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=5)
    for log in watched.logs:
        log.fault("ValueError", "bad configuration", "train.py:9 main").exit()
    watched.look()

    done = subprocess.run(
        command(tmp_path, "--no-verdict", "--exit-on", "death"), stdout=subprocess.PIPE, text=True, timeout=CAP_SECONDS
    )

    assert done.returncode == 1
    assert "ranks 0-1 died; the first: rank 0 died of ValueError: bad configuration" in done.stdout


def test_death_is_told_in_text_and_by_the_code(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=5)
    watched.logs[1].fault("ValueError", "bad sample", "train.py:9 main").exit()
    watched.look()

    done = subprocess.run(
        command(tmp_path, "--no-verdict", "--exit-on", "death"), stdout=subprocess.PIPE, text=True, timeout=CAP_SECONDS
    )

    assert done.returncode == 1
    assert "ALARM 1 death: rank 1 died of ValueError: bad sample (step 5)" in done.stdout


def test_logs_that_are_not_there_are_an_error_once(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "none", "--once"), capture_output=True, text=True, timeout=CAP_SECONDS, check=False
    )

    assert done.returncode == 2
    assert "error: no such directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_kind_of_alarm_that_there_is_none_of_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--exit-on", "boredom"), capture_output=True, text=True, timeout=CAP_SECONDS, check=False
    )

    assert done.returncode == 2
    assert "boredom is no kind of alarm" in done.stderr


class Terminal:
    """A shell in a real terminal of some size."""

    def __init__(self, directory: Path, columns: int, lines: int) -> None:
        self._socket = str(directory / "tmux")
        self._directory = directory
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), SHELL)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PS1": "$ ", "TERM": "xterm-256color"},
            timeout=CAP_SECONDS,
            check=False,
        )
        return done.stdout

    def type(self, *keys: str) -> None:
        """Hit keys, named as tmux does."""
        self._tmux("send-keys", *keys)

    def shows(self, *texts: str) -> str:
        """Wait until all texts are on the screen, and return what it shows."""
        deadline = time.monotonic() + CAP_SECONDS
        while True:
            shown = self._tmux("capture-pane", "-p")
            if all(text in shown for text in texts):
                return shown
            assert time.monotonic() < deadline, f"{texts} not in:\n{shown}"
            time.sleep(0.1)

    def close(self) -> None:
        """End the terminal."""
        self._tmux("kill-server")


@contextlib.contextmanager
def terminal(directory: Path, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    opened = Terminal(directory, columns, lines)
    try:
        yield opened
    finally:
        opened.close()


needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")


@needs_tmux
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50)])
def test_view_in_a_terminal_takes_keys_and_leaves_it_clean(tmp_path: Path, columns: int, lines: int) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    stuck_logs(logs)
    typed = " ".join(command(logs, "--no-verdict"))

    with terminal(tmp_path, columns, lines) as opened:
        opened.type(f"stty size; {typed}; echo left with $?", "Enter")
        shown = opened.shows("STALL no rank made progress", "rank 2 is in its data loader", "q quit")
        opened.type("Enter")
        opened.shows("rank 2 on node0", "esc back")
        opened.type("p")
        opened.shows("PAUSED")
        opened.type("C-c")
        opened.shows("left with 0", f"{lines} {columns}")
        opened.type("stty -a | grep -c -w -e icanon; echo visible", "Enter")
        after = opened.shows("echo visible", "\nvisible\n")

    assert len(shown.splitlines()) <= lines
    assert max(map(len, shown.splitlines())) <= columns
    assert "\n1\n" in after
    assert "PAUSED" not in after


@needs_tmux
def test_directory_may_appear_later_and_vanish(tmp_path: Path) -> None:
    logs = tmp_path / "logs"

    with terminal(tmp_path) as opened:
        opened.type(" ".join(command(logs, "--no-verdict", "--interval", "0.2")), "Enter")
        opened.shows("waiting for logs in")
        logs.mkdir()
        stuck_logs(logs)
        opened.shows("STALL no rank made progress")
        shutil.rmtree(logs)
        opened.shows("are gone")
        opened.type("q")
