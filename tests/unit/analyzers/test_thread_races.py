"""Two threads that issue calls on one group: on which rank which of them came first is nobody's doing."""

from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import Logs, RankLog

TRAIN, SAVE = "train.py:20 train", "saver.py:8 save"


def save(rank: RankLog, *, pending: bool = False) -> None:
    rank.thread = "saver"
    rank.all_gather(SAVE, shape=(1,), dtype="int64", pending=pending)
    rank.thread = "MainThread"


def raced(tmp_path: Path, savers: tuple[int, ...]) -> Verdict:
    """Rank 0 saves before its next step, the other savers after it."""
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(4):
            rank.all_reduce(TRAIN, shape=(81,))
            rank.end_step()
    if 0 in savers:
        save(logs[0], pending=True)
    for rank in logs:
        rank.all_reduce(TRAIN, shape=(81,), pending=True)
        if rank.rank and rank.rank in savers:
            save(rank, pending=True)
        rank.pulses(TRAIN, seconds=30.0, waiting=(rank.calls,))
    return diagnose(logs.load(tmp_path)).verdict


def test_a_race_that_other_ranks_run_too_is_nobodys_fault(tmp_path: Path) -> None:
    verdict = raced(tmp_path, (0, 1))

    assert (verdict.name, verdict.culprits) == ("thread-race", ())
    assert "threads MainThread and saver issue calls on group default_pg" in verdict.summary


def test_a_thread_that_one_rank_alone_has_made_a_call_too_many(tmp_path: Path) -> None:
    verdict = raced(tmp_path, (0,))

    assert (verdict.name, verdict.culprits) == ("sequence-divergence", (0,))
