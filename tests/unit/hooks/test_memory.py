"""Memory of the process, its limits and what the CUDA allocator says."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from distdiag import events
from distdiag.hooks import memory
from tests.recordings import Recording

PROCESS = psutil.Process()


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the files that take the place of the cgroup's."""
    usage, limit = tmp_path / "memory.current", tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CGROUP_FILES", (("/no/such/file", "/no/such/file"), (str(usage), str(limit))))
    return usage, limit


def test_sample_holds_the_memory_of_the_process_and_the_host() -> None:
    sample = memory.sampled(PROCESS, step=3)

    assert sample.step == 3
    assert sample.rss_bytes == pytest.approx(PROCESS.memory_info().rss, rel=0.2)
    assert sample.host_available_bytes == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_sample_holds_use_and_limit_of_the_cgroup(cgroup: tuple[Path, Path]) -> None:
    usage, limit = cgroup
    usage.write_text("1000\n")
    limit.write_text("5000\n")

    sample = memory.sampled(PROCESS, step=0)

    assert (sample.cgroup_bytes, sample.cgroup_limit_bytes) == (1000, 5000)


@pytest.mark.parametrize("unlimited", ["max\n", f"{(1 << 63) - 4096}\n"])
def test_cgroup_without_a_limit_has_none(unlimited: str, cgroup: tuple[Path, Path]) -> None:
    usage, limit = cgroup
    usage.write_text("1000\n")
    limit.write_text(unlimited)

    sample = memory.sampled(PROCESS, step=0)

    assert (sample.cgroup_bytes, sample.cgroup_limit_bytes) == (1000, None)


def test_cgroup_without_a_file_of_its_limit_has_none(cgroup: tuple[Path, Path]) -> None:
    cgroup[0].write_text("1000\n")

    assert memory.sampled(PROCESS, step=0).cgroup_limit_bytes is None


def test_process_without_cuda_has_no_figures_of_its_allocator() -> None:
    sample = memory.sampled(PROCESS, step=0)

    assert sample.allocated_bytes is None
    assert sample.device_bytes is None


def test_figures_of_the_allocator_are_taken_where_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = {
        "allocated_bytes.all.current": 1,
        "reserved_bytes.all.current": 2,
        "allocated_bytes.all.peak": 3,
        "reserved_bytes.all.peak": 4,
        "num_alloc_retries": 5,
        "num_ooms": 6,
    }
    cuda: Any = SimpleNamespace(
        is_initialized=lambda: True,
        memory_stats=lambda: statistics,
        current_device=lambda: 0,
        get_device_properties=lambda device: SimpleNamespace(total_memory=7),
    )
    monkeypatch.setattr(torch, "cuda", cuda)

    sample = memory.sampled(PROCESS, step=0)

    assert (sample.allocated_bytes, sample.reserved_bytes) == (1, 2)
    assert (sample.peak_allocated_bytes, sample.peak_reserved_bytes) == (3, 4)
    assert (sample.alloc_retries, sample.ooms, sample.device_bytes) == (5, 6, 7)


def test_recorder_samples_memory_while_it_is_watched(recorded: Recording) -> None:
    before = len(recorded.log.of(events.Memory))

    recorded.recorder.sample_memory()

    assert len(recorded.log.of(events.Memory)) == before + 1


def test_files_in_the_cgroup_are_told_apart_near_its_limit(
    cgroup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = tmp_path / "memory.stat"
    statistics.write_text("anon 600\ninactive_file 300\n")
    monkeypatch.setattr(memory, "CGROUP_STATISTICS", ("/no/such/file", str(statistics)))
    cgroup[1].write_text("1000\n")

    samples = []
    for usage in ("500\n", "950\n"):
        cgroup[0].write_text(usage)
        samples.append(memory.sampled(PROCESS, step=0).cgroup_reclaimable_bytes)

    assert samples == [None, 300]


def test_memory_of_workers_is_their_own_and_ends_with_them(recorded: Recording) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", "kept = bytearray(50 << 20); print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    worker.stdout.readline()
    recorded.recorder.worker_pids.add(worker.pid)
    workers = memory.Workers(recorded.recorder)

    held = workers.own_bytes(1)
    worker.communicate(b"\n", timeout=90)

    assert held is not None
    assert 50 << 20 <= held < 200 << 20
    assert workers.own_bytes(1 + memory.WORKERS_EVERY_NS) is None
