"""Exceptions: uncaught ones, those of threads, and memory that ran out even where it is caught."""

import logging
import sys
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distdiag import events
from distdiag.errors import RAISE_OWN_ERRORS
from distdiag.hooks import exceptions
from tests.ranks import Ended, launch, line_of
from tests.recordings import Recording, recording


def run(program: str, directory: Path) -> Ended:
    """Run a program of one process that records itself."""
    (ended,) = launch("import distdiag\ndistdiag.install()\n" + program, directory, world_size=1)
    return ended


UNCAUGHT = """
def read():
    raise OSError("no such shard")  # LINE raised

def load():
    try:
        read()  # LINE called
    except OSError as error:
        raise ValueError("bad batch") from error  # LINE from

def train():
    try:
        load()  # LINE loaded
    finally:
        {}["checkpoint"]  # LINE finally

train()  # LINE train
"""


@pytest.fixture(scope="module")
def uncaught(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Run a program that ends in an exception which hides two others."""
    return run(UNCAUGHT, tmp_path_factory.mktemp("uncaught"))


def test_uncaught_exception_is_recorded_with_the_user_frames_of_its_traceback(uncaught: Ended) -> None:
    (fault,) = uncaught.log.faults("exception")

    assert (fault.type, fault.message, fault.where, fault.thread) == (
        "KeyError",
        "'checkpoint'",
        "uncaught",
        "MainThread",
    )
    assert fault.frames == [f"{uncaught.line('train')} <module>", f"{uncaught.line('finally')} train"]


def test_exceptions_behind_an_uncaught_one_are_recorded_with_the_lines_that_raised_them(uncaught: Ended) -> None:
    (fault,) = uncaught.log.faults("exception")

    assert fault.causes == ["ValueError: bad batch", "OSError: no such shard"]
    assert fault.origins == [f"{uncaught.line('from')} load", f"{uncaught.line('raised')} read"]


def test_exceptions_behind_it_are_its_causes(uncaught: Ended) -> None:
    (fault,) = uncaught.log.faults("exception")

    assert fault.causes == ["ValueError: bad batch", "OSError: no such shard"]


def test_program_ends_and_speaks_as_it_would_without_recording(uncaught: Ended) -> None:
    assert uncaught.code == 1
    assert uncaught.stderr.startswith("Traceback (most recent call last):")
    assert uncaught.stderr.endswith("KeyError: 'checkpoint'\n")
    assert "distdiag" not in uncaught.stderr


def test_orderly_exit_follows_an_uncaught_exception(uncaught: Ended) -> None:
    assert [(each.fault, each.where) for each in uncaught.log.faults("exception", "exit")] == [
        ("exception", "uncaught"),
        ("exit", "interpreter"),
    ]


def test_keyboard_interrupt_is_no_fault(tmp_path: Path) -> None:
    ended = run("raise KeyboardInterrupt", tmp_path)

    assert ended.log.faults("exception") == []
    assert [each.where for each in ended.log.faults("exit")] == ["interpreter"]


def test_memory_error_that_nobody_catches_is_out_of_memory(tmp_path: Path) -> None:
    ended = run("bytearray(1 << 62)", tmp_path)

    (fault,) = ended.log.faults("exception", "out-of-memory")
    assert (fault.fault, fault.type, fault.where) == ("out-of-memory", "MemoryError", "uncaught")


# ---- in the test's own process -------------------------------------------------------------------------------
def fail() -> None:
    raise KeyError("lost")  # LINE in the thread


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_exception_of_a_thread_is_recorded_with_its_name(recorded: Recording) -> None:
    thread = threading.Thread(target=fail, name="checkpointer")
    thread.start()
    thread.join()

    (fault,) = recorded.log.faults("exception")
    assert (fault.type, fault.where, fault.thread) == ("KeyError", "thread", "checkpointer")
    assert fault.frames == [f"{line_of(__file__, 'in the thread')} fail"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_exception_of_an_own_thread_is_not_the_jobs_fault(recorded: Recording) -> None:
    thread = threading.Thread(target=fail, name="distdiag-pulse")
    thread.start()
    thread.join()

    assert recorded.log.faults("exception") == []


def test_out_of_memory_error_of_torch_is_seen_where_it_is_made_though_it_is_caught(recorded: Recording) -> None:
    try:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")  # LINE made
    except torch.OutOfMemoryError as error:
        caught = error

    (fault,) = recorded.log.faults("out-of-memory")
    assert (fault.type, fault.where) == ("torch.OutOfMemoryError", "raised")
    assert fault.message == str(caught) == "CUDA out of memory. Tried to allocate 2.00 GiB"
    assert fault.frames[-1].startswith(f"{line_of(__file__, 'made')} ")


def test_memory_is_sampled_when_it_ran_out(recorded: Recording) -> None:
    before = len(recorded.log.of(events.Memory))

    torch.OutOfMemoryError("out of memory")

    assert len(recorded.log.of(events.Memory)) == before + 1


def test_broken_recording_does_not_change_an_out_of_memory_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> None:
        raise OSError("no more room")

    monkeypatch.delenv(RAISE_OWN_ERRORS)
    with recording(tmp_path) as made:
        monkeypatch.setattr(type(made.recorder), "write", broken)

        assert str(torch.OutOfMemoryError("out of memory")) == "out of memory"


def test_hook_that_the_user_sets_later_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)

    def theirs(*_args: Any) -> None:
        """Take the place of ours."""

    with recording(tmp_path):
        sys.excepthook = theirs

    assert sys.excepthook is theirs


def test_causes_that_go_round_in_circles_end(tmp_path: Path) -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__context__, second.__context__ = second, first

    with recording(tmp_path) as made:
        exceptions.record_exception(made.recorder, first, "uncaught")

    (fault,) = made.log.faults("exception")
    assert fault.causes == ["KeyError: 'second'"]


def test_long_message_is_cut(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        exceptions.record_exception(made.recorder, ValueError("x" * 100_000), "uncaught")

    (fault,) = made.log.faults("exception")
    assert fault.message == "x" * exceptions.MAX_MESSAGE


# ---- handled, with a word ---------------------------------------------------------------------------------------
def spoken(log: logging.Logger, how: str) -> None:
    """Handle an error and say something of it; or say something when none is there."""
    try:
        raise OSError("no such shard")  # LINE handled
    except OSError as error:
        if how == "exception":
            log.exception("reading failed")
        elif how == "text":
            log.warning(f"reading failed: {error}")
        elif how == "print_exc":
            traceback.print_exc()
        elif how == "format_exc":
            log.debug(traceback.format_exc())
    if how == "later":
        log.warning("reading failed")


@pytest.mark.parametrize("how", ["exception", "text", "print_exc", "format_exc"])
def test_an_error_that_is_handled_with_a_word_is_recorded_once(recorded: Recording, how: str) -> None:
    for _ in range(3):
        spoken(logging.getLogger("training"), how)

    (caught,) = recorded.log.of(events.Caught)
    assert (caught.type, caught.message, caught.thread) == ("OSError", "no such shard", "MainThread")
    assert caught.frames[-1].startswith(f"{line_of(__file__, 'handled')} ")
    assert recorded.log.faults("exception") == []


def test_of_errors_that_are_handled_again_and_again_ever_fewer_are_recorded(
    recorded: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(1, 1001))
    monkeypatch.setattr(exceptions, "time", SimpleNamespace(monotonic_ns=lambda: next(seconds) * 1_000_000_000))

    for _ in range(1000):
        spoken(logging.getLogger("training"), "exception")

    assert 50 < len(recorded.log.of(events.Caught)) < 200


@pytest.mark.parametrize("how", ["silence", "later"])
def test_nothing_is_said_of_errors_that_nobody_speaks_of(recorded: Recording, how: str) -> None:
    spoken(logging.getLogger("training"), how)

    assert recorded.log.of(events.Caught) == []


def test_own_errors_are_none_that_the_program_caught(recorded: Recording) -> None:
    spoken(logging.getLogger("distdiag"), "exception")

    assert recorded.log.of(events.Caught) == []


def test_an_error_that_a_library_spoke_of_has_the_line_that_called_it(recorded: Recording) -> None:
    library = compile("try: 1 / 0\nexcept ZeroDivisionError: log.warning('caught')", "<library>", "exec")
    exec(library, {"log": logging.getLogger("library")})  # LINE calls

    (caught,) = recorded.log.of(events.Caught)
    assert caught.frames[-1].startswith(f"{line_of(__file__, 'calls')} ")
