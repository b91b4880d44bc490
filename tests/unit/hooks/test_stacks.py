"""Stacks that a process takes of itself."""

import inspect
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distdiag.events import ThreadStack
from distdiag.hooks import stacks


def waiting_place(started: threading.Event, stopped: threading.Event) -> None:
    started.set()
    stopped.wait()


@contextmanager
def waiting_thread(name: str) -> Iterator[None]:
    """Let a thread wait in a place that stacks can be searched for."""
    started, stopped = threading.Event(), threading.Event()
    thread = threading.Thread(target=waiting_place, args=(started, stopped), name=name)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def of(threads: list[ThreadStack], name: str) -> list[str]:
    (stack,) = [each for each in threads if each.thread == name]
    return stack.frames


def test_stack_of_each_thread_runs_from_the_outermost_frame_to_the_innermost() -> None:
    with waiting_thread("loader"):
        source, threads = stacks.take(native=False)

    assert source == "python"
    frames = of(threads, "loader")
    line = inspect.getsourcelines(waiting_place)[1] + 2
    place = frames.index(f"{__file__}:{line} waiting_place")
    assert "_bootstrap" in frames[0]
    assert 0 < place < len(frames) - 1


def test_main_thread_comes_first() -> None:
    with waiting_thread("another"):
        _, threads = stacks.take(native=False)

    assert threads[0].thread == "MainThread"
    assert any("test_main_thread_comes_first" in frame for frame in threads[0].frames)


def test_own_threads_are_left_out() -> None:
    with waiting_thread("distdiag-something"):
        _, threads = stacks.take(native=False)

    assert not any(each.thread.startswith("distdiag-") for each in threads)


def test_native_frames_are_taken_where_a_tracer_is_allowed() -> None:
    with waiting_thread("loader"):
        source, threads = stacks.take(native=True)

    if source == "python":
        pytest.skip("this machine lets no process trace another")
    assert any("waiting_place" in frame for frame in of(threads, "loader"))
    assert any("lock" in frame or "sem_" in frame or "futex" in frame for frame in of(threads, "loader"))


def test_python_stacks_take_the_place_of_a_tracer_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_py_spy", lambda: None)

    source, threads = stacks.take(native=True)

    assert source == "python"
    assert threads


def test_python_stacks_take_the_place_of_a_tracer_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    false = shutil.which("false")
    assert false is not None
    monkeypatch.setattr(stacks, "_py_spy", lambda: false)

    source, threads = stacks.take(native=True)

    assert source == "python"
    assert threads


def test_stacks_that_take_too_long_are_given_up_when_the_process_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    monkeypatch.setattr(stacks, "_py_spy", lambda: str(slow))
    stopped = threading.Event()
    stopped.set()
    began = time.monotonic()

    source, _ = stacks.take(native=True, stopped=stopped)

    assert source == "python"
    assert time.monotonic() - began < 10
