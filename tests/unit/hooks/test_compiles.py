"""Compilations of ``torch.compile``."""

import time
from pathlib import Path

import pytest
import torch
from torch._dynamo import trace_rules
from torch._dynamo.callback import callback_handler
from torch._dynamo.utils import counters

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


def test_callbacks_that_somebody_cleared_are_put_back(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        torch._dynamo.reset()
        compiled()

    assert len(made.log.of(events.Compile)) == 1
    assert callback_handler.start_callbacks == []


@pytest.mark.filterwarnings("default")  # torch gives some of its own while it compiles
def test_the_compiler_passes_over_what_distdiag_runs(tmp_path: Path) -> None:
    """A graph breaks at backward; what is called then is looked at by the compiler, frame by frame."""

    def train(weight: torch.Tensor) -> torch.Tensor:
        loss = (weight * 2).sum()
        torch.autograd.backward(loss)
        return loss

    def graphs_made() -> int:
        torch._dynamo.reset()
        counters.clear()
        torch.compile(train, backend="eager")(torch.ones(3, requires_grad=True))
        return counters["stats"]["unique_graphs"]

    bare = graphs_made()

    with recording(tmp_path):
        recorded = graphs_made()

    assert bare == recorded


def test_a_graph_that_must_be_whole_stays_whole(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    parameter.grad = torch.full((4,), 3.0)

    with recording(tmp_path):
        clip = torch.compile(torch.nn.utils.clip_grad_norm_, backend="eager", fullgraph=True)
        norm = clip([parameter], 1.0)

    assert norm.item() == pytest.approx(6.0)


def test_passed_over_no_more_when_recording_ends(tmp_path: Path) -> None:
    before = list(trace_rules.SKIP_DIRS)

    with recording(tmp_path):
        assert len(trace_rules.SKIP_DIRS) == len(before) + 1

    assert before == trace_rules.SKIP_DIRS
