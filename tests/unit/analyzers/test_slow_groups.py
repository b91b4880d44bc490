"""One group, or one stage of a pipeline, that is slower than the others."""

from pathlib import Path

import pytest

from distdiag.analyzers.slowness.stages import stages_of
from tests.logs import MONOTONIC_NS, Logs
from tests.slow_jobs import the_finding, told


def paired(slow: float = 0.0, *, pairs: int = 4, size_bytes: int = 1 << 20) -> Logs:
    """Pairs of ranks with a group each; that of the last pair takes longer."""
    logs = Logs(world_size=2 * pairs, ranks_per_host=1)
    for rank in logs:
        pair = rank.rank // 2
        rank.group(f"pair{pair}", (2 * pair, 2 * pair + 1))
        for step in range(20):
            rank.at(0.1 * step + 0.05)
            rank.all_reduce(
                "train.py:7 step",
                group=f"pair{pair}",
                shape=(size_bytes // 4,),
                seconds=0.004 + (slow if pair == pairs - 1 else 0.0),
            )
            rank.at(0.1 * step).end_step(seconds=0.1)
        rank.exit()
    return logs


def test_the_group_whose_link_is_slow_is_told(tmp_path: Path) -> None:
    finding = the_finding(paired(0.02), tmp_path)

    assert (finding.name, finding.culprits, finding.group) == ("slow-link", (6, 7), "pair3")
    assert "hosts node6, node7" in finding.summary
    assert "(6.0x)" in finding.summary


@pytest.mark.parametrize("logs", [paired(0.001), paired(0.02, pairs=2), paired(0.02, size_bytes=1 << 12)])
def test_small_differences_small_messages_and_two_groups_tell_no_slow_link(tmp_path: Path, logs: Logs) -> None:
    assert told(logs, tmp_path).findings == ()


def test_lateness_that_another_group_caused_goes_to_its_source(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for step in range(20):
        for rank in logs.only(0, 1):
            rank.members.setdefault("front", (0, 1)) if step else rank.group("front", (0, 1))
        for rank in logs.only(1, 2):
            rank.members.setdefault("back", (1, 2)) if step else rank.group("back", (1, 2))
        begin = 0.1 * step
        logs[0].at(begin + 0.05).all_reduce(group="front")  # late by itself
        logs[1].at(begin + 0.01).all_reduce(group="front", seconds=0.041)
        logs[1].at(begin + 0.052).all_reduce(group="back")  # late because of rank 0
        logs[2].at(begin + 0.01).all_reduce(group="back", seconds=0.043)
        for rank in logs:
            rank.at(begin).end_step(seconds=0.1)

    rows = told(logs, tmp_path).performance["ranks"]

    assert [row["waits_caused_seconds"] for row in rows] == pytest.approx([18 * 0.082, 0.0, 0.0], abs=0.02)


def pipeline(last: float = 1.0, *, replicas: int = 2, stages: int = 3) -> Logs:
    """Stages of ranks that send to the next, and gradients that come back in the sum of a group at the end."""
    logs = Logs(world_size=replicas * stages)
    for step in range(20):
        for replica in range(replicas):
            at = 0.3 * step
            for stage in range(stages):
                rank = logs[stage * replicas + replica]
                work = 0.04 * (last if stage == stages - 1 else 1.0)
                rank.at(0.3 * step)
                if stage:
                    rank.recv(rank.rank - replicas, seconds=at - 0.3 * step + 0.001)
                    at += 0.001
                rank.sleep(work)
                at += work
                if stage < stages - 1:
                    rank.send(rank.rank + replicas)
        for rank in logs:
            rank.all_reduce(seconds=0.3 * step + 0.29 - (rank.now_ns - MONOTONIC_NS) / 1e9)
            rank.at(0.3 * step).end_step(seconds=0.3)
    for rank in logs:
        rank.exit()
    return logs


def test_stages_are_chains_of_messages(tmp_path: Path) -> None:
    assert dict(stages_of(pipeline().load(tmp_path))) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}


def test_the_stage_that_has_more_to_do_is_told_and_no_rank_of_it(tmp_path: Path) -> None:
    finding = the_finding(pipeline(last=1.8), tmp_path)

    assert (finding.name, finding.culprits, finding.cause) == ("stage-imbalance", (4, 5), "last-stage")


def test_even_stages_are_healthy(tmp_path: Path) -> None:
    assert told(pipeline(), tmp_path).findings == ()
