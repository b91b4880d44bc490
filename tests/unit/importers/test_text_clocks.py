"""Output of hosts whose clocks nothing compares, and output without moments: an order of lines accuses nobody."""

import datetime
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.importers import load
from tests import training_output as out

BEGINNING = datetime.datetime(2025, 12, 6, 18, 40)
TRAIN = ("/app/train.py", 50, "main")
KEY_ERROR = "KeyError: 'labels'"
NO_LEADER = "AssertionError: no heartbeat of the coordinator"
SKEWS = [-1200.0, -5.0, 0.5, 1200.0]
Texts = dict[str, list[str]]


def clock(seconds: float) -> str:
    return (BEGINNING + datetime.timedelta(seconds=seconds)).strftime("%H:%M:%S.%f") + "001"


def said(seconds: float, *lines: str) -> list[str]:
    """Return lines below one of a logger that tells the moment."""
    moment = BEGINNING + datetime.timedelta(seconds=seconds)
    return [f"{moment:%Y-%m-%d %H:%M:%S},000 ERROR train: stopping", *lines]


def agent(seconds: float, rank: int, code: int) -> list[str]:
    """Return what torchrun says of the process of a rank."""
    moment = BEGINNING + datetime.timedelta(seconds=seconds)
    failed = f"torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: {code}) local_rank: 0 (pid: 222)"
    return [
        f"E{moment:%m%d %H:%M:%S}.000000 100 {failed} of binary: /usr/bin/python",
        "=" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : {moment:%Y-%m-%d_%H:%M:%S}",
        "  host      : b",
        f"  rank      : {rank} (local_rank: 0)",
        f"  exitcode  : {code} (pid: 222)",
        "  error_file: <N/A>",
        f"  traceback : Signal {-code} received by PID 222" if code < 0 else "  traceback : To enable traceback see: …",
        "=" * 60,
    ]


def told_by(directory: Path, **texts: list[str]) -> Verdict:
    for name, lines in texts.items():
        (directory / f"{name}.log").write_text("\n".join(lines) + "\n")
    return diagnose(load(directory)).verdict


@pytest.mark.parametrize("skew", SKEWS)
def test_which_host_failed_first_is_not_told_by_clocks_that_nothing_compares(tmp_path: Path, skew: float) -> None:
    verdict = told_by(
        tmp_path,
        host_a=said(0, *out.traceback(KEY_ERROR, TRAIN, rank=0)),
        host_b=said(20 + skew, *out.traceback(NO_LEADER, TRAIN, rank=2)),
    )

    assert (verdict.name, verdict.culprits) == ("insufficient-evidence", ())
    assert "rank 0: KeyError" in verdict.summary
    assert "rank 2: AssertionError" in verdict.summary


@pytest.mark.parametrize("skew", SKEWS)
def test_an_error_that_a_rank_tells_itself_explains_an_abort_on_another_host(tmp_path: Path, skew: float) -> None:
    verdict = told_by(
        tmp_path,
        host_a=[*said(0, *out.traceback(KEY_ERROR, TRAIN, rank=0)), *agent(1, 0, 1)],
        host_b=agent(3 + skew, 2, -6),
    )

    assert (verdict.name, verdict.culprits) == ("rank-died", (0,))


@pytest.mark.parametrize("skew", SKEWS)
def test_time_outs_on_two_hosts_call_no_host_late(tmp_path: Path, skew: float) -> None:
    verdict = told_by(
        tmp_path,
        host_a=[out.watchdog(rank, 17, clock=clock(600)) for rank in (0, 1)],
        host_b=[out.watchdog(rank, 17, clock=clock(600.2 + skew)) for rank in (2, 3)],
    )

    assert verdict.name in ("transport-stuck", "insufficient-evidence")
    assert verdict.culprits == ()


@pytest.mark.parametrize("skew", SKEWS)
def test_what_ends_after_somebody_ended_the_job_is_no_cause_on_another_host_either(tmp_path: Path, skew: float) -> None:
    verdict = told_by(
        tmp_path,
        host_a=["slurmstepd: error: *** STEP 71.0 ON a CANCELLED AT 2025-12-06T18:40:00 DUE TO PREEMPTION ***"],
        host_b=agent(3 + skew, 2, -6),
    )

    assert (verdict.name, verdict.culprits) == ("insufficient-evidence", ())
    assert "because of preemption" in verdict.summary


def test_a_rank_that_was_killed_is_no_victim_of_who_was_told_to_stop_after_it(tmp_path: Path) -> None:
    stop = "torch/distributed/elastic/agent/server/api.py:704] Received Signals.SIGTERM death signal"

    verdict = told_by(tmp_path, host_a=[f"W1206 18:40:30.000000 1 {stop}"], host_b=agent(0, 2, -9))

    assert (verdict.name, verdict.culprits, verdict.cause) == ("rank-died", (2,), "killed")


def test_errors_of_two_ranks_without_moments_are_both_told_and_none_is_called_first(tmp_path: Path) -> None:
    other = ("/app/train.py", 90, "watch")

    verdict = told_by(tmp_path, out=out.traceback(NO_LEADER, other, rank=1) + out.traceback(KEY_ERROR, TRAIN, rank=0))

    assert (verdict.name, verdict.culprits) == ("insufficient-evidence", ())
    assert "rank 0: KeyError: 'labels' (train.py:50)" in verdict.summary
    assert "rank 1: AssertionError" in verdict.summary


def test_an_error_of_a_ranks_own_is_a_cause_below_the_echoes_of_others_too(tmp_path: Path) -> None:
    closed = "RuntimeError: [/gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.0.0.2]:1234"
    echoes = [line for rank in (2, 0) for line in out.failed_call("all_reduce", closed, TRAIN, rank=rank)]

    verdict = told_by(tmp_path, out=echoes + out.traceback(KEY_ERROR, TRAIN, rank=1))

    assert (verdict.name, verdict.culprits, verdict.victims) == ("rank-died", (1,), (0, 2))


@pytest.mark.parametrize(("skew", "first"), [(0.0, (1,)), (1.0, (1,)), (30.0, ()), (-1200.0, ()), (1200.0, ())])
def test_clocks_that_agree_where_both_hosts_gave_up_tell_which_failed_first(
    tmp_path: Path, skew: float, first: tuple[int, ...]
) -> None:
    verdict = told_by(
        tmp_path,
        host_a=[
            *said(-30, *out.traceback(KEY_ERROR, TRAIN, rank=1)),
            *(out.watchdog(rank, 41, clock=clock(600)) for rank in (0, 2, 3)),
        ],
        host_b=[
            *said(70 + skew, *out.traceback(NO_LEADER, TRAIN, rank=5)),
            *(out.watchdog(rank, 41, clock=clock(600.2 + skew)) for rank in (4, 6, 7)),
        ],
    )

    assert verdict.culprits == first
    assert "KeyError" in verdict.summary
    assert "AssertionError" in verdict.summary
