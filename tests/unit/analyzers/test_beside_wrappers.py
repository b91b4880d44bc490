"""Parameters that an optimizer trains beside a wrapped model: mentioned where they were equal, and accused never."""

from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Report, Severity
from tests.logs import Logs

WRAPPED, BESIDE = 1, 1 << 17


def trained(directory: Path, heads: list[list[int]], *, wrapped: bool = True) -> Report:
    """Train a wrapped model, equal on all ranks, and a head on each with these checksums, one a step."""
    logs = Logs(world_size=len(heads))
    kept = ((WRAPPED, "DistributedDataParallel"), (BESIDE, events.BESIDE))[0 if wrapped else 1 :]
    for rank, head in zip(logs, heads, strict=True):
        for number, name in kept:
            names = ["0 (1x8)"] if number == BESIDE else ["trunk.weight"]
            rank.add(events.Wrapper(wrapper=number, name=name, group="0", time_ns=rank.now_ns, parameters=names))
        for step, own in enumerate(head):
            for number, value in ((WRAPPED, 100 + step), (BESIDE, own)):
                digests = value.to_bytes(4, "little")
                checks: dict[str, Any] = {"wrapper": number, "checksum": value}
                rank.add(events.Numerics(step=step, time_ns=rank.now_ns, digests=digests, **checks))
            rank.all_reduce()
            rank.end_step()
        rank.exit()
    return diagnose(logs.load(directory))


def test_what_was_equal_and_goes_apart_is_mentioned(tmp_path: Path) -> None:
    report = trained(tmp_path, [[7, 8, 9], [7, 80, 90]])

    (found,) = report.findings
    assert report.verdict.name == "healthy"
    assert (found.name, found.cause, found.severity, found.step) == (
        "missing-gradient-sync",
        "outside",
        Severity.INFO,
        1,
    )
    assert found.summary.startswith(
        "1 parameter that the optimizer trains beside the DDP model began equal on ranks 0-1"
    )


def test_what_a_script_leaves_out_when_it_averages_by_itself_is_told_as_that(tmp_path: Path) -> None:
    (found,) = trained(tmp_path, [[7, 8, 9], [7, 80, 90]], wrapped=False).findings

    assert found.summary.startswith("1 parameter that the optimizer trains began equal on ranks 0-1 and differs from")
    assert "Nothing averages their gradients;" in found.summary


@pytest.mark.parametrize("heads", [[[7, 8, 9], [7, 8, 9]], [[7, 8, 9], [70, 80, 90]]])
def test_heads_that_stay_equal_or_never_were_are_in_order(tmp_path: Path, heads: list[list[int]]) -> None:
    assert trained(tmp_path, heads).findings == ()
