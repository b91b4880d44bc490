"""Verdicts where the words of an error tell whose it is: devices of other makers, services, and old time-outs."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Report
from distdiag.importers import load
from tests import training_output as out

STEP = ("/project/pretrain.py", 57, "one_step")
NPU = "[ERROR] 2026-03-04-05:06:07 (PID:7100, Device:1, RankID:9) ERR00100 PTA call acl api failed"


def report_of(directory: Path, *parts: str) -> Report:
    (directory / "train.log").write_text(out.text(*parts))
    return diagnose(load(directory))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            out.traceback("RuntimeError: [Rank:4] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::8", STEP),
            ("out-of-memory", (4,)),
        ),
        (["[Rank:6] FATAL ERROR :: MODULE:PT_BRIDGE Exception in Launch thread..."], ("rank-died", (6,))),
        (
            [*out.traceback("RuntimeError: NPU out of memory. Tried to allocate 1.00 GiB (NPU 1; …)", STEP), NPU],
            ("out-of-memory", (9,)),
        ),
        (
            [
                *out.traceback("RuntimeError: NPU function error: SynchronizeWithTimeout, error code is 507015", STEP),
                NPU,
            ],
            ("rank-died", (9,)),
        ),
    ],
)
def test_an_error_that_names_its_rank_is_that_rank_s(
    lines: list[str], expected: tuple[str, tuple[int, ...]], tmp_path: Path
) -> None:
    verdict = report_of(tmp_path, *lines).verdict

    assert (verdict.name, verdict.culprits) == expected


@pytest.mark.parametrize(
    "error",
    [
        "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('closed'))",
        "huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url",
        "botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL",
    ],
)
def test_a_service_that_a_rank_could_not_reach_is_no_other_rank(error: str, tmp_path: Path) -> None:
    verdict = report_of(
        tmp_path, *out.traceback(error, STEP, rank=0), *(out.watchdog(rank, 12) for rank in (1, 2))
    ).verdict

    assert (verdict.name, verdict.culprits, verdict.victims) == ("rank-died", (0,), (1, 2))


def test_a_time_out_of_hccl_is_not_the_device_s_own_error(tmp_path: Path) -> None:
    error = "RuntimeError: NPU function error: SynchronizeWithTimeout, error code is 107020"

    verdict = report_of(tmp_path, *out.traceback(error, STEP), NPU).verdict

    assert verdict.culprits == ()


def test_the_oldest_time_outs_are_read_in_what_ended_the_process(tmp_path: Path) -> None:
    work = "Caught collective operation timeout: WorkNCCL(OpType=BROADCAST, Timeout(ms)=1800000) ran for 1801000"

    verdict = report_of(
        tmp_path,
        *(f"  what():  [Rank {rank}] {work} milliseconds before timing out." for rank in (0, 2)),
    ).verdict

    assert (verdict.victims, verdict.op) == ((0, 2), "broadcast")
