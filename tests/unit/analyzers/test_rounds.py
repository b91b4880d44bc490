"""A pass left out of a round whose calls all come again in the next one."""

from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import Logs, RankLog

TRAIN, EVALUATE = "train.py:20 train", "train.py:40 evaluate"
PASSES = 5


def train(rank: RankLog, *, pending: bool = False) -> None:
    rank.forwards, rank.backwards = 1, 1
    call = rank.all_reduce(TRAIN, shape=(81,), pending=pending)
    if pending:
        rank.pulses(TRAIN, seconds=30.0, waiting=(call,))
    else:
        rank.end_step()


def stuck(tmp_path: Path, *, passes: int, rounds: int = 2, again: bool = False) -> Verdict:
    """Rank 1 makes so many passes of its last round, and evaluates; ``again``, although it has just done that."""
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(rounds):
            for _ in range(PASSES):
                train(rank)
            rank.all_reduce(EVALUATE, shape=(1,))
        for _ in range(passes):
            train(rank)
        if again and passes == PASSES:
            rank.all_reduce(EVALUATE, shape=(1,))
        if rank.rank == 1:
            call = rank.all_reduce(EVALUATE, shape=(1,), pending=True)
            rank.pulses(EVALUATE, seconds=30.0, waiting=(call,))
        else:
            train(rank, pending=True)
    return diagnose(logs.load(tmp_path)).verdict


def test_who_ends_a_round_sooner_than_ever_before_left_a_pass_out(tmp_path: Path) -> None:
    verdict = stuck(tmp_path, passes=PASSES - 1)

    assert (verdict.name, verdict.culprits, verdict.site) == ("skipped-steps", (1,), "train.py:20")
    assert verdict.summary.startswith("rank 1 skipped a pass that ranks 0,2 made (forwards begun: 14 against 15)")


def test_who_evaluates_twice_in_a_row_made_a_call_too_many(tmp_path: Path) -> None:
    verdict = stuck(tmp_path, passes=PASSES, again=True)

    assert (verdict.culprits, verdict.site) == ((1,), "train.py:40")
    assert "issued all_reduce of 1 float32 (train.py:40), which ranks 0,2 did not" in verdict.summary


def test_the_first_round_has_none_to_be_compared_with(tmp_path: Path) -> None:
    assert "left out" not in stuck(tmp_path, passes=PASSES - 1, rounds=0).summary
