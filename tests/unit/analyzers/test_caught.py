"""What a rank caught before it left the others is said beside the verdict."""

from pathlib import Path

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import Logs, RankLog

STEP, LOG = "train.py:20 step", "train.py:30 log"
SAID = "rank 1 had caught KeyError: 'acc' (metrics.py:7)"


def catch(rank: RankLog, type: str = "KeyError", message: str = "'acc'", thread: str = "MainThread") -> None:
    rank.sleep(0.001).add(
        events.Caught(
            time_ns=rank.now_ns, step=rank.step, type=type, message=message, thread=thread, frames=["metrics.py:7 get"]
        )
    )


def left_out(tmp_path: Path, *caught: int, thread: str = "MainThread", early: bool = False) -> Verdict:
    """Rank 1 leaves a call out in step 2."""
    logs = Logs(world_size=3)
    for rank in logs:
        for number in range(4):
            if early and number == 0 and rank.rank in caught:
                catch(rank, thread=thread)
            rank.all_reduce(STEP, shape=(64,))
            if not early and number == 2 and rank.rank in caught:
                catch(rank, thread=thread)
            if (rank.rank, number) != (1, 2):
                rank.all_reduce(LOG)
            rank.end_step()
    return diagnose(logs.load(tmp_path)).verdict


def test_what_the_odd_rank_caught_before_it_left_a_call_out_is_said(tmp_path: Path) -> None:
    verdict = left_out(tmp_path, 1)

    assert (verdict.name, verdict.culprits) == ("sequence-divergence", (1,))
    assert verdict.summary.endswith(f"Just before, {SAID}.")
    assert verdict.evidence[0] == SAID


@pytest.mark.parametrize(
    ("caught", "thread", "early"),
    [
        ((0, 1, 2), "MainThread", False),
        ((0, 2), "MainThread", False),
        ((1,), "uploader", False),
        ((1,), "MainThread", True),
    ],
)
def test_what_others_caught_too_or_elsewhere_or_long_before_is_not(
    tmp_path: Path, caught: tuple[int, ...], thread: str, early: bool
) -> None:
    assert "caught" not in left_out(tmp_path, *caught, thread=thread, early=early).summary


def test_what_a_missing_rank_had_caught_is_said(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        rank.all_reduce(STEP)
    catch(logs[1])
    logs[1].exit()
    for rank in logs.but(1):
        rank.pulses(STEP, seconds=30.0, waiting=(rank.all_reduce(STEP, pending=True),))
    verdict = diagnose(logs.load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits, verdict.cause) == ("rank-missing", (1,), "exited")
    assert "rank 1: had caught KeyError: 'acc' (metrics.py:7)" in verdict.evidence


def death(tmp_path: Path, type: str, message: str, *, memory: bool = False) -> Verdict:
    logs = Logs(world_size=3)
    for rank in logs:
        rank.all_reduce(STEP)
    catch(logs[1])
    if memory:
        logs[1].fault("torch.OutOfMemoryError", "out of memory", STEP, where="raised", fault="out-of-memory")
    logs[1].sleep(0.1).fault(type, message, LOG).exit(1)
    for rank in logs.but(1):
        rank.all_reduce(STEP, error="RuntimeError: Connection closed by peer")
        rank.exit(1)
    return diagnose(logs.load(tmp_path)).verdict


def test_what_a_rank_had_caught_before_it_died_is_said(tmp_path: Path) -> None:
    verdict = death(tmp_path, "ValueError", "no metrics")

    assert (verdict.name, verdict.culprits) == ("rank-died", (1,))
    assert verdict.summary.endswith(f"Just before, {SAID}.")


def test_an_error_that_was_logged_and_raised_again_is_said_once(tmp_path: Path) -> None:
    assert "caught" not in death(tmp_path, "KeyError", "'acc'").summary


def test_an_error_that_comes_of_a_caught_memory_error_is_told_as_that(tmp_path: Path) -> None:
    verdict = death(tmp_path, "RuntimeError", "Expected to have finished reduction", memory=True)

    assert (verdict.name, verdict.culprits, verdict.site) == ("out-of-memory", (1,), "train.py:20")
    assert "it came to the top as RuntimeError: Expected to have finished reduction" in verdict.evidence


def test_what_a_call_failed_with_was_not_caught_before_it(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    message = "Timed out waiting 6000ms for send operation to complete"
    for rank in logs:
        rank.all_reduce(STEP)
    logs[0].done(logs[0].broadcast(LOG, pending=True), seconds=6.0, error=f"RuntimeError: {message}")
    catch(logs[0], "RuntimeError", message)
    logs[1].at(7.0).all_gather("train.py:40 wrap", pending=True)

    verdict = diagnose(logs.load(tmp_path)).verdict

    assert verdict.name in {"op-mismatch", "sequence-divergence"}
    assert "caught" not in verdict.summary
