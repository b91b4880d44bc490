"""Requests to a running rank: it does what somebody asks through the directory of its logs, and says so."""

import threading
import time
from pathlib import Path

import pytest

import distdiag
from distdiag import events, requests
from distdiag.requests import Request
from tests.recordings import Recording, recording
from tests.waiting import until

BEAT_SECONDS = 0.02


@pytest.fixture(autouse=True)
def fast_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIAG_PULSE_SECONDS", str(BEAT_SECONDS))
    monkeypatch.setenv("DISTDIAG_NATIVE_STACKS", "off")


def answers(made: Recording) -> list[str]:
    """Return the requests that were met."""
    return [each.value for each in made.log.of(events.Decision) if each.name == requests.ANSWER]


def settle() -> None:
    """Let the thread see what was there before."""
    time.sleep(5 * BEAT_SECONDS)


def test_stacks_are_written_when_somebody_asks(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        settle()
        requests.post(tmp_path, Request(ask="stacks"))
        until(lambda: "stacks" in answers(made))
        (stack,) = made.log.of(events.Stack)

    assert stack.reason == "request"
    main = next(each for each in stack.threads if each.thread == "MainThread")
    assert any("test_stacks_are_written_when_somebody_asks" in frame for frame in main.frames)


def test_request_of_an_earlier_time_is_for_others(tmp_path: Path) -> None:
    requests.post(tmp_path, Request(ask="stacks"))

    with recording(tmp_path) as made:
        settle()
        requests.post(tmp_path, Request(ask="detail", level="up"))
        until(lambda: answers(made))

    assert answers(made) == ["detail up"]
    assert made.log.of(events.Stack) == []


def test_request_to_other_ranks_is_not_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    with recording(tmp_path) as made:
        settle()
        requests.post(tmp_path, Request(ask="stacks", ranks=[0, 1]))
        requests.post(tmp_path, Request(ask="detail", level="up", ranks=[3]))
        until(lambda: answers(made))

    assert answers(made) == ["detail up"]


def test_detail_goes_up_and_back_to_what_it_was(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        settle()
        requests.post(tmp_path, Request(ask="detail", level="down"))
        until(lambda: answers(made))
        down = made.recorder.settings.pulse_seconds
        requests.post(tmp_path, Request(ask="detail", level="normal"))
        until(lambda: len(answers(made)) == 2)

        assert (down, made.recorder.settings.pulse_seconds) == (5.0, BEAT_SECONDS)


def test_search_for_bad_numbers_is_armed_for_some_steps(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        modules = made.recorder.numerics.modules
        settle()
        requests.post(tmp_path, Request(ask="numerics", steps=3))
        until(lambda: answers(made))
        armed = vars(modules)["_handle"] is not None
        for _ in range(3):
            distdiag.step()
        until(lambda: vars(modules)["_handle"] is None)

    assert armed


def test_file_that_is_no_request_is_passed_over(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        settle()
        folder = tmp_path / requests.FOLDER
        folder.mkdir(parents=True)
        (folder / "0.json").write_bytes(b'{"ask":"world peace"}')
        requests.post(tmp_path, Request(ask="detail", level="up"))
        until(lambda: answers(made))

    assert answers(made) == ["detail up"]


def test_thread_ends_with_recording(tmp_path: Path) -> None:
    with recording(tmp_path):
        assert any(thread.name == "distdiag-control" for thread in threading.enumerate())

    assert not any(thread.name == "distdiag-control" for thread in threading.enumerate())
