"""What of the devices' peak is used, what bounds a step, and what is computed twice; told only where it is known."""

import io
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Report
from distdiag.reporters import text
from distdiag.run import load
from tests.logs import Logs
from tests.recordings import lonely_world, recording

STEP = 0.1
TRANSFER = 0.01
BYTES = 4 << 20
MOVED = BYTES * 2 * 3 / 4
"""Over the slowest link of four ranks, by one all-reduce."""


def trained(*, flops: float | None = 3e9, peak: float | None = 1e11, device: str = "cpu", recomputed: int = 0) -> Logs:
    """Four ranks whose steps take a tenth of a second, a tenth of that in an all-reduce."""
    logs = Logs(world_size=4)
    for log in logs:
        for step in range(12):
            log.at(STEP * (step + 1) - TRANSFER).in_phase("backward")
            log.all_reduce("train.py:33 step", shape=(BYTES // 4,), seconds=TRANSFER, device=device)
            facts: dict[str, Any] = {} if flops is None else {"flops": flops}
            facts |= {} if peak is None or step else {"peak_flops": peak}
            log.in_phase("").end_step(
                seconds=0.0, facts=facts, forward_ns=30_000_000, backward_ns=60_000_000, recompute_ns=recomputed or None
            )
            record = log.records[-1]
            assert isinstance(record, events.Step)
            record.start_ns = log.now_ns - round(STEP * 1e9)
        log.exit()
    return logs


def efficiency(report: Report) -> dict[str, Any]:
    told: dict[str, Any] = report.performance["efficiency"]
    return told


def found_in(logs: Logs, directory: Path) -> Report:
    report = diagnose(logs.load(directory))
    assert report.verdict.name == "healthy", report.verdict
    return report


def printed(report: Report) -> str:
    out = io.StringIO()
    text.render(report, out)
    return " ".join(out.getvalue().split())


def test_mfu_is_the_work_over_what_the_peak_allows(tmp_path: Path) -> None:
    report = diagnose(trained(peak=1e12).load(tmp_path / "low"))
    told = efficiency(report)

    assert told["flops_per_second"] == pytest.approx(4 * 3e9 / STEP)
    assert told["mfu"] == pytest.approx(0.03)
    assert "3 % of the devices' peak (MFU)" in printed(report)


@pytest.mark.parametrize(("peak", "bound"), [(1e11, "computing"), (1e13, "communication")])
def test_a_step_is_bound_by_what_the_roofline_says(tmp_path: Path, peak: float, bound: str) -> None:
    told = efficiency(found_in(trained(peak=peak), tmp_path))

    assert told["flops_per_byte"] == pytest.approx(3e9 / MOVED, rel=1e-4)
    assert told["balance"] == pytest.approx(peak / (MOVED / TRANSFER), rel=1e-4)
    assert told["bound_by"] == bound


def test_without_the_users_numbers_nothing_is_told(tmp_path: Path) -> None:
    report = found_in(trained(flops=None, peak=None), tmp_path)
    told = efficiency(report)

    assert (told["mfu"], told["flops_per_second"], told["bound_by"]) == (None, None, None)
    assert "distdiag.step(flops=" in told["unknown"]["mfu"]
    assert "MFU" not in printed(report)


def test_without_a_peak_only_the_pace_is_told(tmp_path: Path) -> None:
    told = efficiency(found_in(trained(peak=None), tmp_path))

    assert (told["mfu"], told["balance"], told["bound_by"]) == (None, None, None)
    assert told["flops_per_second"] == pytest.approx(4 * 3e9 / STEP)
    assert "peak_flops" in told["unknown"]["mfu"]


def test_more_than_the_peak_is_no_share(tmp_path: Path) -> None:
    told = efficiency(found_in(trained(peak=1e9), tmp_path))

    assert told["mfu"] is None
    assert "more than the whole device" in told["unknown"]["mfu"]


def test_without_device_times_mfu_is_told_and_what_bounds_is_not(tmp_path: Path) -> None:
    report = diagnose(trained(device="cuda", recomputed=20_000_000).load(tmp_path))
    told = efficiency(report)

    assert told["mfu"] == pytest.approx(0.3)
    assert (told["bound_by"], told["recompute_share"]) == (None, None)
    assert "30 % of the devices' peak (MFU)" in printed(report)


def test_recomputation_is_a_share_of_the_backward(tmp_path: Path) -> None:
    report = found_in(trained(recomputed=15_000_000), tmp_path)

    assert efficiency(report)["recompute_share"] == 0.25
    assert "25 % of the backward computes activations again" in printed(report)


class Slow(torch.nn.Linear):
    """A layer whose forward takes a while."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return super().forward(input)


@pytest.mark.parametrize("again", [True, False])
def test_recomputation_of_real_steps_is_seen(tmp_path: Path, again: bool) -> None:
    layer = Slow(4, 4)
    with recording(tmp_path), lonely_world():
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
        for _ in range(10):
            batch = torch.ones(2, 4, requires_grad=True)
            output = checkpoint(layer, batch, use_reentrant=False) if again else layer(batch)
            torch.autograd.backward(output.sum())
            optimizer.step()

    share = efficiency(diagnose(load(tmp_path)))["recompute_share"]

    assert (share is not None and 0.5 < share <= 1) if again else share is None
