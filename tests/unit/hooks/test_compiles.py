"""Compilations of ``torch.compile``."""

import time
from pathlib import Path

import torch
from torch._dynamo.callback import callback_handler

from distdiag import events
from tests.recordings import recording


def compiled() -> None:
    """Compile a small function, and run it twice."""
    function = torch.compile(lambda tensor: tensor * 2 + 1, backend="eager")
    function(torch.ones(3))
    function(torch.ones(3))


def test_a_compilation_is_recorded_once_with_its_length(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        began_ns = time.monotonic_ns()
        compiled()
        ended_ns = time.monotonic_ns()

    (compilation,) = made.log.of(events.Compile)
    assert began_ns <= compilation.time_ns <= compilation.time_ns + compilation.duration_ns <= ended_ns
    assert compilation.duration_ns > 0
    assert compilation.what == "dynamo"


def test_nothing_stays_when_recording_ends(tmp_path: Path) -> None:
    before = list(callback_handler.start_callbacks), list(callback_handler.end_callbacks)

    with recording(tmp_path):
        assert len(callback_handler.start_callbacks) == len(before[0]) + 1

    assert (callback_handler.start_callbacks, callback_handler.end_callbacks) == before


def test_callbacks_that_somebody_cleared_are_no_trouble(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        callback_handler.clear()
        compiled()

    assert made.log.of(events.Compile) == []
