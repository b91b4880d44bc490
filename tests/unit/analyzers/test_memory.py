"""What the message of an allocator says beyond that memory ran out, and ranks that need more than their peers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from distdiag import events
from distdiag.analyzers import diagnose, memory_imbalance
from distdiag.analyzers.investigation.memory import fragmentation
from distdiag.findings import Severity
from tests.logs import Logs

GIB = 1 << 30

MESSAGE = "Tried to allocate {asked}. … {unused} is reserved by PyTorch but unallocated."


@pytest.mark.parametrize(
    ("asked", "unused", "expected"),
    [("2.00 GiB", "15.53 GiB", True), ("512.00 MiB", "1.10 GiB", True), ("18.86 GiB", "15.53 GiB", False)],
)
def test_memory_that_is_held_and_not_used_is_fragmentation_if_it_would_do(
    asked: str, unused: str, expected: bool
) -> None:
    told = fragmentation(MESSAGE.format(asked=asked, unused=unused))

    assert (told is not None) is expected
    assert told is None or (asked in told and unused in told)


def test_other_messages_tell_no_fragmentation() -> None:
    assert fragmentation("MemoryError: cannot allocate") is None


def trained(peaks_gib: Sequence[float], *, device_gib: float = 80.0, first_step: int = 0) -> Logs:
    """Logs of ranks whose devices had such peaks from a step on, and 10 GiB before."""
    logs = Logs(world_size=len(peaks_gib))
    for rank, peak in zip(logs, peaks_gib, strict=True):
        for step in range(8):
            rank.all_reduce("train.py:10 step")
            used = peak if step >= first_step else 10.0
            rank.add(
                events.Memory(
                    time_ns=rank.now_ns,
                    step=step,
                    peak_allocated_bytes=round(used * GIB),
                    device_bytes=round(device_gib * GIB),
                )
            )
            rank.end_step()
        rank.exit()
    return logs


def test_rank_that_needs_far_more_than_its_peers_is_named(tmp_path: Path) -> None:
    run = trained([41.0, 10.2, 10.0, 10.1], first_step=4).load(tmp_path)

    (finding,) = memory_imbalance.analyze(run)

    assert (finding.culprits, finding.step, finding.severity) == ((0,), 4, Severity.INFO)
    assert finding.summary.startswith(
        "rank 0 needs 4.1x the device memory of its peers: 41.00 GiB at its peak, 10.10 GiB on the median of 3 others"
    )


def test_imbalance_is_a_warning_where_the_device_is_nearly_full(tmp_path: Path) -> None:
    (finding,) = memory_imbalance.analyze(trained([70.0, 50.0, 50.0, 50.0]).load(tmp_path))

    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    "peaks_gib",
    [
        [10.0, 10.0, 10.0, 10.0],
        [12.0, 10.0, 10.0, 10.0],  # a fifth more
        [0.9, 0.3, 0.3, 0.3],  # little
        [20.0, 10.0, 10.0],  # two peers do not say what is usual
        [30.0, 10.0, 15.0, 12.0],  # they differ among themselves
        [20.0, 20.0, 10.0, 10.0],  # two kinds of ranks
    ],
)
def test_usual_differences_between_ranks_are_no_imbalance(tmp_path: Path, peaks_gib: list[float]) -> None:
    assert list(memory_imbalance.analyze(trained(peaks_gib).load(tmp_path))) == []


def test_stages_of_a_pipeline_are_not_compared(tmp_path: Path) -> None:
    logs = trained([30.0, 10.0, 10.0, 10.0, 10.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_imbalance, "roles_of", lambda run: [[0], [1, 2, 3, 4]])

        assert list(memory_imbalance.analyze(logs.load(tmp_path))) == []


def test_logs_without_a_device_tell_no_imbalance(tmp_path: Path) -> None:
    logs = Logs(world_size=4)
    for rank in logs:
        rank.add(events.Memory(time_ns=rank.now_ns, step=3, rss_bytes=GIB)).exit()

    assert list(memory_imbalance.analyze(logs.load(tmp_path))) == []


def test_what_held_the_memory_of_the_rank_that_ran_out_is_told(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        rank.all_reduce("/job/train.py:10 step")
        rank.end_step()
    held = [
        events.Allocation(size_bytes=5 * GIB, blocks=2, frames=["/job/train.py:8 main", "/job/model.py:33 forward"]),
        events.Allocation(size_bytes=GIB, blocks=1),
    ]
    out = logs[1]
    out.add(events.Memory(time_ns=out.now_ns, step=1, largest=held, snapshot="rank00001.oom1.pickle"))
    out.fault("torch.OutOfMemoryError", "CUDA out of memory", "/job/model.py:33 forward", fault="out-of-memory").exit()
    for rank in logs.but(1):
        rank.all_reduce(error="RuntimeError: Connection closed by peer")
        rank.fault("RuntimeError", "Connection closed by peer").exit()

    verdict = diagnose(logs.load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits) == ("out-of-memory", (1,))
    assert (
        "largest on the device of rank 1: 5.00 GiB in 2 blocks at model.py:33 forward, 1.00 GiB in 1 block of one size"
        in verdict.evidence
    )
    assert "load rank00001.oom1.pickle, beside the log of rank 1, into torch's memory_viz" in verdict.next_steps
