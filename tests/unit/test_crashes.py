"""Dumps of faulthandler, as it writes them."""

import signal
import subprocess
import sys
from pathlib import Path

from distdiag.run.crashes import crashes_in, user_frames
from tests.logs import Logs

PROGRAM = """
import faulthandler, os, signal, sys, threading, time

def wait():
    threading.Event().wait(20)

def stop(how):
    file = open(sys.argv[1], "w")
    faulthandler.enable(file)
    faulthandler.register(signal.SIGTERM, file, chain=True)
    threading.Thread(target=wait, daemon=True).start()
    how(file)

def own_signal(number):
    return lambda file: os.kill(os.getpid(), number)

def freeze(file):
    faulthandler.dump_traceback_later(0.05, file=file)
    time.sleep(0.5)

stop({"freeze": freeze}.get(sys.argv[2]) or own_signal(getattr(signal, sys.argv[2])))
"""


def dump(directory: Path, how: str) -> tuple[Path, int]:
    script, file = directory / "program.py", directory / "rank00000.crash.txt"
    script.write_text(PROGRAM)
    ended = subprocess.run([sys.executable, str(script), str(file), how], timeout=90, check=False)
    return file, ended.returncode


def functions(frames: tuple[str, ...]) -> list[str]:
    return [frame.rpartition(" ")[2] for frame in user_frames(frames)]


def test_an_abort_names_its_signal_and_the_thread_that_was_running(tmp_path: Path) -> None:
    file, code = dump(tmp_path, "SIGABRT")

    (crash,) = crashes_in(file)

    assert code == -signal.SIGABRT
    assert crash.kind == "SIGABRT"
    assert functions(crash.frames) == ["<module>", "stop", "<lambda>"]


def test_a_segmentation_fault_is_told_from_an_abort(tmp_path: Path) -> None:
    file, _ = dump(tmp_path, "SIGSEGV")

    assert [crash.kind for crash in crashes_in(file)] == ["SIGSEGV"]


def test_a_dump_without_a_headline_is_a_sigterm(tmp_path: Path) -> None:
    file, code = dump(tmp_path, "SIGTERM")

    (crash,) = crashes_in(file)

    assert code == -signal.SIGTERM
    assert (crash.kind, functions(crash.frames)) == ("SIGTERM", ["<module>", "stop", "<lambda>"])


def test_a_timeout_is_a_frozen_process_in_its_main_thread(tmp_path: Path) -> None:
    file, _ = dump(tmp_path, "freeze")

    (crash,) = crashes_in(file)

    assert (crash.kind, functions(crash.frames)) == ("frozen", ["<module>", "stop", "freeze"])


def test_several_dumps_of_one_file_are_told_apart(tmp_path: Path) -> None:
    abort, terminated = (dump(tmp_path, how)[0].read_text() for how in ("SIGABRT", "SIGTERM"))
    file = tmp_path / "both.crash.txt"
    file.write_text(terminated + terminated + abort)

    assert [crash.kind for crash in crashes_in(file)] == ["SIGTERM", "SIGTERM", "SIGABRT"]


def test_an_abort_in_a_thread_that_is_not_pythons_shows_the_main_thread(tmp_path: Path) -> None:
    file = tmp_path / "foreign.crash.txt"
    file.write_text(
        "Fatal Python error: Aborted\n\n"
        "Thread 0x00007fac273ff6c0 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 331 in wait\n\n'
        "Thread 0x00007fac47a5bb80 [python] (most recent call first):\n"
        '  File "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
        '  File "/job/train.py", line 49 in step\n'
        '  File "<frozen runpy>", line 198 in _run_module_as_main\n'
    )

    (crash,) = crashes_in(file)

    assert user_frames(crash.frames) == ("/job/train.py:49 step",)


def test_frames_of_other_installed_packages_are_the_users(tmp_path: Path) -> None:
    frames = (
        "/usr/lib/python3.11/site-packages/accelerate/accelerator.py:9 backward",
        "/usr/lib/python3.11/site-packages/torch/_tensor.py:1 backward",
        "/usr/lib/python3.11/contextlib.py:1 inner",
        "/work/lib/train.py:3 main",
    )

    assert user_frames(frames) == (frames[0], frames[3])


def test_an_empty_or_unreadable_dump_is_no_crash(tmp_path: Path) -> None:
    file = tmp_path / "rank00000.crash.txt"
    file.write_bytes(b"\xff\x00 nothing to see\n")

    assert list(crashes_in(file)) == []


def test_crashes_belong_to_the_attempt_that_is_analysed(tmp_path: Path) -> None:
    file, _ = dump(tmp_path, "SIGABRT")
    text = file.read_text()
    file.unlink()
    again = Logs(world_size=2, attempt=1)
    again.write(tmp_path)
    (tmp_path / "rank00000.crash.txt").write_text(text)
    (tmp_path / "rank00001.attempt1.crash.txt").write_text(text)

    crashes = again.load(tmp_path).crashes

    assert crashes[["rank", "kind"]].to_dict("list") == {"rank": [1], "kind": ["SIGABRT"]}


def test_a_dump_of_the_running_thread_alone_is_a_sigterm_too(tmp_path: Path) -> None:
    file = tmp_path / "alone.crash.txt"
    file.write_text('Stack (most recent call first):\n  File "train.py", line 3 in main\n')

    (crash,) = crashes_in(file)

    assert (crash.kind, crash.frames) == ("SIGTERM", ("train.py:3 main",))
