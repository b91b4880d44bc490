"""Signs of life: where the main thread is, whether it still moves, and what is done when it does not."""

import concurrent.futures
import contextlib
import io
import os
import pdb
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

import distdiag
from distdiag import events
from tests.ranks import Ended, launch
from tests.recordings import Recording, recording
from tests.waiting import until

SOON_SECONDS = 30.0
"""What is waited for comes in well under a second, but a machine may be busy."""
BEAT_SECONDS = 0.01
STALL_SECONDS = 0.2
HICCUP_SECONDS = 1.0
"""Longer than a process that would go on has to wait for a processor."""
PATIENT_SECONDS = 5.0
"""A limit that no hiccup of a busy machine comes near."""


@pytest.fixture(autouse=True)
def fast_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hearts beat faster than anybody's does."""
    monkeypatch.setenv("DISTDIAG_PULSE_SECONDS", str(BEAT_SECONDS))
    monkeypatch.setenv("DISTDIAG_NATIVE_STACKS", "off")


def pulses(made: Recording) -> list[events.Pulse]:
    """Return the pulses of the thread, without the first record of a log."""
    return [each for each in made.log.of(events.Pulse) if each.cpu_ns is not None]


def stacks(made: Recording) -> list[events.Stack]:
    return made.log.of(events.Stack)


@contextmanager
def stalling(directory: Path) -> Iterator[Recording]:
    with recording(directory, stall_after=STALL_SECONDS) as made:
        yield made


def test_pulse_tells_where_the_main_thread_is(tmp_path: Path) -> None:
    def of_step() -> list[events.Pulse]:
        """Return the pulses of the step that were taken here; a generator that yields meanwhile has no callers."""
        paths = made.log.paths()
        here = {path for path, frames in paths.items() if any("test_pulse_tells_where" in frame for frame in frames)}
        return [each for each in pulses(made) if each.step == 1 and each.path in here]

    with recording(tmp_path) as made:
        distdiag.step()
        (pulse, *_) = until(of_step)

    assert pulse.rss_bytes > 0
    assert pulse.cpu_ns > 0
    assert pulse.stall_after_seconds == 60.0
    assert pulse.activity is None


def test_pulse_names_the_phase_of_the_user(tmp_path: Path) -> None:
    with recording(tmp_path) as made, distdiag.phase("tokenize"):
        assert until(lambda: [each for each in pulses(made) if each.phase == "tokenize"])


class Shards(Dataset[int]):
    """Data that come when they may."""

    def __init__(self, ready: Callable[[], Any]) -> None:
        self.ready = ready

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        until(self.ready)
        return index


def test_pulse_knows_a_rank_that_waits_for_its_data(tmp_path: Path) -> None:
    def while_reading() -> list[events.Pulse]:
        """Return the pulses that came while a sample was read; a slow machine sees others on the way there."""
        paths = made.log.paths()
        reading = {path for path, frames in paths.items() if any("__getitem__" in frame for frame in frames)}
        return [each for each in pulses(made) if each.path in reading]

    with recording(tmp_path) as made:
        loader: Any = DataLoader(Shards(while_reading))
        list(loader)

    assert {(each.activity, each.phase) for each in while_reading()} == {("data-loading", "data")}


def test_stand_still_leaves_the_stacks_of_all_threads_once(tmp_path: Path) -> None:
    with stalling(tmp_path) as made:
        helper = threading.Thread(target=lambda: until(lambda: stacks(made)), name="helper")
        helper.start()
        helper.join()
        time.sleep(2 * STALL_SECONDS)

        (stack,) = stacks(made)

    assert (stack.reason, stack.source) == ("stall", "python")
    assert stack.stalled_seconds is not None
    assert STALL_SECONDS <= stack.stalled_seconds < SOON_SECONDS
    assert [each.thread for each in stack.threads][:1] == ["MainThread"]
    assert any(each.thread == "helper" for each in stack.threads)


def test_progress_is_no_stand_still(tmp_path: Path) -> None:
    with recording(tmp_path, stall_after=HICCUP_SECONDS) as made:
        began = time.monotonic()
        while time.monotonic() - began < 1.5 * HICCUP_SECONDS:
            distdiag.step()
            time.sleep(BEAT_SECONDS)

        assert stacks(made) == []


def test_second_stand_still_is_reported_too(tmp_path: Path) -> None:
    with stalling(tmp_path) as made:
        until(lambda: stacks(made))
        distdiag.step()
        until(lambda: len(stacks(made)) == 2)


def test_time_in_a_phase_of_the_user_is_no_stand_still(tmp_path: Path) -> None:
    with stalling(tmp_path) as made, distdiag.phase("tokenize"):
        time.sleep(2 * STALL_SECONDS)

        assert stacks(made) == []


def limits(made: Recording) -> list[float | None]:
    return [each.stall_after_seconds for each in pulses(made)]


def pause(made: Recording, seconds: float) -> None:
    """Stand still for a while between two steps, and let the pulse notice that it is over."""
    time.sleep(seconds)
    distdiag.step()
    seen = len(pulses(made))
    until(lambda: len(pulses(made)) > seen + 1)


def warm_up(made: Recording) -> None:
    """Make the first steps, and let the pulse notice: pauses count from there."""
    for _ in range(3):
        distdiag.step()
    until(lambda: [each for each in pulses(made) if each.step == 3])


def test_limit_follows_the_longest_pause_so_far(tmp_path: Path) -> None:
    with recording(tmp_path, stall_after=PATIENT_SECONDS) as made:
        warm_up(made)
        pause(made, 0.3 * PATIENT_SECONDS)

        longest = limits(made)[-1]

    assert longest is not None
    assert longest >= 5 * 0.25 * PATIENT_SECONDS  # it is measured from beat to beat
    assert stacks(made) == []


def test_pauses_while_warming_up_do_not_count(tmp_path: Path) -> None:
    with recording(tmp_path, stall_after=SOON_SECONDS) as made:
        for _ in range(2):
            pause(made, 0.05)

        assert set(limits(made)) == {SOON_SECONDS}


def test_time_in_a_phase_of_the_user_does_not_loosen_the_limit_of_the_rest(tmp_path: Path) -> None:
    with recording(tmp_path, stall_after=PATIENT_SECONDS) as made:
        warm_up(made)
        with distdiag.phase("tokenize"):
            time.sleep(0.3 * PATIENT_SECONDS)
        pause(made, 0)

        assert limits(made)[-1] == PATIENT_SECONDS


# ---- processes of their own --------------------------------------------------------------------------------------
def test_stacks_are_written_even_while_the_interpreter_is_held(tmp_path: Path) -> None:
    (ended,) = launch(
        """
        import ctypes, time, distdiag
        distdiag.install()
        time.sleep(0.2)
        ctypes.PyDLL(None).usleep(1_000_000)  # LINE held
        """,
        tmp_path,
        world_size=1,
        variables={"DISTDIAG_PULSE_SECONDS": "0.02", "DISTDIAG_STALL_AFTER": "0.2"},
    )

    assert ended.code == 0, ended.stderr
    assert "Timeout (0:00:00.2" in ended.crash
    assert f'File "{ended.script}", line {ended.line("held").rpartition(":")[2]} in <module>' in ended.crash


def test_timer_that_the_user_set_survives_recording_that_never_needed_one(tmp_path: Path) -> None:
    (ended,) = launch(
        """
        import faulthandler, os, time, distdiag
        faulthandler.dump_traceback_later(0.3)
        distdiag.install()
        if not os.fork():
            os._exit(0)
        distdiag.uninstall()
        time.sleep(0.6)
        """,
        tmp_path,
        world_size=1,
        variables={"DISTDIAG_PULSE_SECONDS": "100"},
    )

    assert "Timeout (0:00:00.3" in ended.stderr


STUCK = """
import time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
import distdiag

class Shards(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        time.sleep(4)  # LINE reading
        return index

distdiag.install()
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    list(DataLoader(Shards()))
dist.all_reduce(torch.ones(2))  # LINE waiting
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    """Run two ranks, of which the second is stuck in its data loader for a while."""
    ranks = launch(
        STUCK,
        tmp_path_factory.mktemp("stuck"),
        variables={"DISTDIAG_PULSE_SECONDS": "0.1", "DISTDIAG_STALL_AFTER": "1", "DISTDIAG_NATIVE_STACKS": "on"},
    )
    assert [each.code for each in ranks] == [0, 0], ranks[0].stderr + ranks[1].stderr
    return ranks


def test_rank_that_waits_tells_for_which_call(stuck: list[Ended]) -> None:
    waiting = stuck[0]

    (issued,) = [each for each in waiting.log.issued() if each.site.startswith(f"{waiting.line('waiting')} ")]
    waits = [each for each in waiting.log.of(events.Pulse) if each.waiting]
    assert waits[-1].waiting == [issued.call.call]
    assert waiting.log.paths()[waits[-1].path or 0] == issued.frames
    assert issued.seconds > 1


def test_stack_of_the_stuck_rank_leads_to_the_line_of_its_data_set(stuck: list[Ended]) -> None:
    reading = stuck[1]

    (stack, *_) = reading.log.of(events.Stack)
    (main,) = [each for each in stack.threads if each.thread == "MainThread"]
    file, line = reading.line("reading").rsplit(":", 1)
    assert any(file.rpartition("/")[2] in frame and f":{line} " in frame for frame in main.frames), main.frames
    assert any(each.activity == "data-loading" for each in reading.log.of(events.Pulse))


def test_stack_holds_native_frames_where_a_tracer_is_allowed(stuck: list[Ended]) -> None:
    (stack, *_) = stuck[0].log.of(events.Stack)
    if stack.source == "python":
        pytest.skip("this machine lets no process trace another")

    (main,) = [each for each in stack.threads if each.thread == "MainThread"]
    assert any("gloo" in frame or "libtorch" in frame or "c10d::" in frame for frame in main.frames), main.frames


def test_pulse_goes_on_while_stacks_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taking, done = threading.Event(), threading.Event()

    def take(**options: Any) -> tuple[str, list[events.ThreadStack]]:
        taking.set()
        done.wait(SOON_SECONDS)
        return "python", []

    monkeypatch.setattr("distdiag.hooks.stacks.take", take)
    with stalling(tmp_path) as made:
        assert taking.wait(SOON_SECONDS)
        before = len(pulses(made))
        until(lambda: len(pulses(made)) > before + 3)
        assert stacks(made) == []
        done.set()
        (stack,) = until(lambda: stacks(made))

    assert stack.reason == "stall"


# ---- what the main thread waits for ---------------------------------------------------------------------------------
def in_subprocess() -> None:
    subprocess.run([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, timeout=0.3, check=False)


def in_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.3)
        server.accept()


def in_queue() -> None:
    queue.Queue[int]().get(timeout=0.3)


def in_pool() -> None:
    concurrent.futures.ThreadPoolExecutor(1).submit(time.sleep, 0.3).result()


def in_own_file() -> None:
    exec(compile("time.sleep(0.3)", "/job/http/queue.py", "exec"), {"time": time})


def in_debugger() -> None:
    read, write = os.pipe()
    threading.Timer(0.3, os.write, (write, b"continue\n")).start()
    with os.fdopen(read) as commands:
        pdb.Pdb(stdin=commands, stdout=io.StringIO(), nosigint=True, readrc=False).set_trace()
        assert commands  # the line at which it stops


@pytest.mark.parametrize(
    ("wait", "holder"),
    [
        (in_subprocess, "process"),
        (in_socket, "network"),
        (in_queue, "thread"),
        (in_pool, "thread"),
        (in_debugger, "debugger"),
        (in_own_file, None),
        (lambda: time.sleep(0.3), None),
    ],
)
def test_pulse_tells_what_the_main_thread_waits_for(
    tmp_path: Path, wait: Callable[[], None], holder: str | None
) -> None:
    with recording(tmp_path) as made:
        distdiag.step()
        with contextlib.suppress(subprocess.TimeoutExpired, TimeoutError, queue.Empty):
            wait()
        told = {each.held_by for each in pulses(made) if each.step == 1}

    assert holder in told
    assert told <= {holder, None}
