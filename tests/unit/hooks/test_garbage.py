"""Pauses of the garbage collector."""

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distdiag import events
from distdiag.errors import RAISE_OWN_ERRORS
from distdiag.hooks import garbage
from tests.recordings import Recording, recording


@pytest.fixture(autouse=True)
def only_when_asked() -> Iterator[None]:
    """Let nothing but a test start a collection."""
    gc.disable()
    yield
    gc.enable()


def test_noticeable_pause_is_recorded_with_its_length(recorded: Recording) -> None:
    began_ns = time.monotonic_ns()
    gc.collect()  # torch alone has enough objects
    ended_ns = time.monotonic_ns()

    (pause,) = recorded.log.of(events.GarbageCollection)
    assert pause.generation == 2
    assert garbage.NOTICEABLE_NS <= pause.duration_ns <= ended_ns - began_ns
    assert began_ns <= pause.time_ns <= ended_ns


def test_short_pause_is_not_recorded(recorded: Recording) -> None:
    gc.freeze()
    try:
        for _ in range(10):
            gc.collect()
    finally:
        gc.unfreeze()

    assert len(recorded.log.of(events.GarbageCollection)) <= 1  # this machine is noisy


def test_watching_ends_with_recording(tmp_path: Path) -> None:
    before = list(gc.callbacks)

    with recording(tmp_path):
        assert len(gc.callbacks) == len(before) + 1

    assert gc.callbacks == before


def test_callbacks_that_somebody_cleared_do_not_keep_the_hooks_from_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RAISE_OWN_ERRORS)
    kept = list(gc.callbacks)

    with recording(tmp_path) as made:
        gc.callbacks.clear()
    gc.callbacks.extend(kept)

    assert [each.where for each in made.log.faults("exit")] == ["uninstall"]
