"""Stages of a pipeline that run different numbers of micro-batches."""

from collections.abc import Mapping
from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import Logs

FORWARD, BACKWARD = "train.py:20 forward", "train.py:30 backward"


def stuck(counts: Mapping[int, int], tmp_path: Path, *, stages: int = 4, steps: int = 1, usual: int = 4) -> Verdict:
    """Return the verdict on stages that run all forwards first and wait where their neighbours' numbers differ."""
    logs = Logs(world_size=stages)
    for _ in range(steps):
        for rank in logs:
            for _ in range(usual):
                _forward(rank.rank, logs, pending=None)
            for _ in range(usual):
                _backward(rank.rank, logs, pending=None)
            rank.end_step()
    for rank in logs:
        _stop(rank.rank, logs, counts, usual)
    return diagnose(logs.load(tmp_path)).verdict


def _forward(rank: int, logs: Logs, pending: str | None) -> None:
    if rank:
        logs[rank].recv(rank - 1, FORWARD, pending=pending == "in")
    if rank < len(logs.ranks) - 1 and pending != "in":
        logs[rank].send(rank + 1, FORWARD, pending=pending == "out")


def _backward(rank: int, logs: Logs, pending: str | None) -> None:
    if rank < len(logs.ranks) - 1:
        logs[rank].recv(rank + 1, BACKWARD, pending=pending == "in")
    if rank and pending != "in":
        logs[rank].send(rank - 1, BACKWARD, pending=pending == "out")


def _stop(rank: int, logs: Logs, counts: Mapping[int, int], usual: int) -> None:
    """Run a last step up to where a stage waits: for a forward that its neighbours lack, or else for a gradient."""
    last, mine = len(logs.ranks) - 1, counts.get(rank, usual)
    before, after = counts.get(rank - 1, usual), counts.get(rank + 1, usual)
    for number in range(mine):
        lacks = "in" if rank and number >= before else "out" if rank < last and number >= after else None
        _forward(rank, logs, pending=lacks)
        if lacks:
            break
    else:
        gradients_come = all(counts.get(later, usual) == mine for later in range(rank, last + 1))
        if gradients_come and before == mine:
            _backward(rank, logs, pending=None)  # it is taken, and the next one is not
        _backward(rank, logs, pending="out" if gradients_come else "in")
    site = FORWARD if mine > min(before, after) else BACKWARD
    logs[rank].pulses(site, seconds=9.0)


def test_a_stage_with_fewer_micro_batches_is_named(tmp_path: Path) -> None:
    verdict = stuck({1: 3}, tmp_path)

    assert (verdict.name, verdict.culprits, verdict.cause) == ("p2p-unmatched", (1,), "micro-batches")
    assert "rank 1 turned to something else after 3 messages in one direction" in verdict.summary
    assert "in the step before, all of them issued 4" in verdict.evidence
    assert verdict.step == 1


def test_a_stage_with_more_micro_batches_is_named(tmp_path: Path) -> None:
    verdict = stuck({2: 5}, tmp_path)

    assert (verdict.name, verdict.culprits) == ("p2p-unmatched", (2,))
    assert "rank 2 issued at least 5" in verdict.summary


def test_two_stages_against_two_are_both_shown(tmp_path: Path) -> None:
    verdict = stuck({2: 3, 3: 3}, tmp_path)

    assert (verdict.name, verdict.culprits, verdict.cause) == ("p2p-unmatched", (), "micro-batches")
    assert "ranks 2-3 turned" in verdict.summary
    assert "ranks 0-1 issued" in verdict.summary


def test_stages_in_a_ring_are_told_apart_too(tmp_path: Path) -> None:
    """Each rank holds several stages, so that the last passes on to the first."""
    logs = Logs(world_size=3)
    for number in range(2):
        for rank in logs:
            for _ in range(3 if rank.rank == 1 and number else 4):
                rank.recv((rank.rank - 1) % 3, FORWARD)
                rank.send((rank.rank + 1) % 3, FORWARD)
            if not number:
                rank.end_step()
    logs[0].send(1, FORWARD, pending=True)
    logs[1].recv(2, BACKWARD, pending=True)
    logs[2].recv(1, FORWARD, pending=True)
    for rank in logs:
        rank.pulses(BACKWARD if rank.rank == 1 else FORWARD, seconds=9.0)

    verdict = diagnose(logs.load(tmp_path)).verdict

    assert (verdict.culprits, verdict.cause) == ((1,), "micro-batches")


def test_of_two_stages_none_is_named(tmp_path: Path) -> None:
    assert stuck({1: 3}, tmp_path, stages=2).culprits == ()


def test_a_stage_between_two_that_expect_more_is_named_in_the_first_step(tmp_path: Path) -> None:
    assert stuck({1: 3}, tmp_path, steps=0).culprits == (1,)


def test_a_last_stage_that_turned_early_may_follow_a_wrong_order_in_the_first_step(tmp_path: Path) -> None:
    verdict = stuck({3: 3}, tmp_path, steps=0)

    assert (verdict.name, verdict.culprits) == ("p2p-deadlock", (2, 3))


def test_a_last_stage_that_turned_early_is_named_where_the_order_was_right_before(tmp_path: Path) -> None:
    assert stuck({3: 3}, tmp_path).culprits == (3,)


def test_a_stage_that_took_one_more_than_it_passed_on_left_a_message_out(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(3):
            _forward(rank.rank, logs, pending=None)
    logs[0].send(1, FORWARD)
    logs[1].recv(0, FORWARD)
    logs[1].recv(2, BACKWARD, pending=True)
    logs[2].recv(1, FORWARD, pending=True)
    logs[0].recv(1, BACKWARD, pending=True)
    for rank in logs:
        rank.pulses(FORWARD if rank.rank == 2 else BACKWARD, seconds=9.0)

    assert diagnose(logs.load(tmp_path)).verdict.cause != "micro-batches"
