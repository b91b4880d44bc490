"""What holds a device's memory when it runs out; CUDA's allocator is played by a fake."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distdiag import events
from distdiag.hooks import memory
from distdiag.hooks.memory import MOST_ITEMS, MOST_REPORTS
from tests.recordings import Recording

GIB = 1 << 30
LIBRARY = str(Path(torch.__file__).parent / "nn" / "modules" / "linear.py")


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


FORWARD = [frame(LIBRARY, 125, "forward"), frame("/job/model.py", 33, "forward"), frame("/job/train.py", 8, "main")]
"""Innermost first, as torch tells."""


def block(size: int, frames: list[dict[str, Any]] | None = None, state: str = "active_allocated") -> dict[str, Any]:
    return {"size": size, "state": state, "frames": frames or []}


def segment(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"total_size": sum(each["size"] for each in blocks), "blocks": list(blocks)}


class FakeAllocator:
    """As much of ``torch.cuda`` as is asked when memory runs out."""

    def __init__(self, segments: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, *, history: bool) -> None:
        self.segments = segments
        self.asked = 0
        cuda = SimpleNamespace(
            is_initialized=lambda: True,
            memory_stats=dict,
            current_device=lambda: 0,
            get_device_properties=lambda device: SimpleNamespace(total_memory=80 * GIB),
            memory_snapshot=self.memory_snapshot,
        )
        monkeypatch.setattr(torch, "cuda", cuda)
        monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: history, raising=False)

    def memory_snapshot(self, mempool_id: object = None, include_traces: bool = True) -> list[dict[str, Any]]:
        self.asked += 1
        assert not include_traces  # there may be millions
        return self.segments


def samples(made: Recording) -> list[events.Memory]:
    return made.log.of(events.Memory)


def run_out() -> None:
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_largest_items_are_told_by_the_lines_that_allocated_them(
    recorded: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = [frame("/job/train.py", 5, "main")]
    first = segment(block(3 * GIB, FORWARD), block(GIB, other), block(9 * GIB, state="inactive"))
    FakeAllocator([first, segment(block(2 * GIB, FORWARD))], monkeypatch, history=True)

    run_out()

    assert [(each.size_bytes, each.blocks, each.frames) for each in samples(recorded)[-1].largest] == [
        (5 * GIB, 2, ["/job/train.py:8 main", "/job/model.py:33 forward"]),
        (GIB, 1, ["/job/train.py:5 main"]),
    ]


def test_snapshot_is_a_file_beside_the_log_that_torchs_tools_read(
    recorded: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeAllocator([segment(block(GIB, FORWARD))], monkeypatch, history=True)

    run_out()

    name = samples(recorded)[-1].snapshot
    assert name is not None
    path = recorded.recorder.journal.path.parent / name
    written = pickle.loads(path.read_bytes())
    assert (written["segments"], written["device_traces"]) == ([segment(block(GIB, FORWARD))], [])


def test_without_a_history_sizes_are_told_and_nothing_is_written(
    recorded: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeAllocator([segment(block(GIB), block(GIB), block(3 * GIB))], monkeypatch, history=False)

    run_out()

    told = samples(recorded)[-1]
    assert [(each.size_bytes, each.blocks, each.frames) for each in told.largest] == [
        (3 * GIB, 1, []),
        (2 * GIB, 2, []),
    ]
    assert told.snapshot is None
    assert list(recorded.recorder.journal.path.parent.glob("*.pickle")) == []


def test_program_that_runs_out_again_and_again_is_asked_only_a_few_times(
    recorded: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = FakeAllocator([segment(*(block(size * GIB) for size in range(1, 40)))], monkeypatch, history=True)

    for _ in range(5):
        run_out()

    assert allocator.asked == MOST_REPORTS
    assert [len(each.largest) for each in samples(recorded)[-5:]] == [MOST_ITEMS, MOST_ITEMS, 0, 0, 0]


def test_large_snapshot_keeps_the_largest_segments(recorded: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [segment(block(size, [frame("/job/train.py", size, "f")])) for size in range(1, 1001)]
    FakeAllocator(segments, monkeypatch, history=True)
    monkeypatch.setattr(memory, "MOST_BYTES", 40_000)

    run_out()

    path = recorded.recorder.journal.path.parent / str(samples(recorded)[-1].snapshot)
    kept = pickle.loads(path.read_bytes())["segments"]
    assert path.stat().st_size <= 40_000
    assert 0 < len(kept) < 1000
    assert min(each["total_size"] for each in kept) == 1001 - len(kept)


def test_usual_samples_do_not_ask_what_is_allocated(recorded: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = FakeAllocator([], monkeypatch, history=True)

    recorded.recorder.sample_memory()

    assert allocator.asked == 0


def test_nothing_is_asked_while_a_graph_is_captured(recorded: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = FakeAllocator([], monkeypatch, history=True)
    recorded.recorder.capturing = 1

    run_out()

    assert allocator.asked == 0
