"""Sharded units that only some ranks come to, or that ranks choose each for itself: those of one size are gathered for
one another without any error."""

from collections.abc import Sequence
from pathlib import Path

from distdiag.findings import Verdict
from tests.logs import Logs, RankLog
from tests.stuck import TIMED_OUT, verdict

FORWARD = ("train.py:9 main", "train.py:16 forward")
BACKWARD = ("train.py:9 main", "train.py:24 step")


def gather(rank: RankLog, site: Sequence[str], unit: int) -> None:
    rank.call("all_gather_into_tensor", site, module=f"blocks.{unit}", shape=[64])


def one_pass(rank: RankLog, units: Sequence[int], *, backward: bool = True) -> None:
    """A forward through some units, and its backward."""
    rank.forwards += 1
    rank.in_phase("forward")
    for unit in units:
        gather(rank, FORWARD, unit)
    rank.in_phase("backward")
    if backward:
        rank.backwards += 1
        for unit in reversed(units):
            gather(rank, BACKWARD, unit)
            rank.call("reduce_scatter_tensor", BACKWARD, module=f"blocks.{unit}", shape=[64])


def stopped(logs: Logs, tmp_path: Path, at: int) -> Verdict:
    """The verdict on ranks that fail in the call of some number, as backends would where it differs."""
    for rank in logs:
        calls = [number for number, record in enumerate(rank.records) if type(record).__name__ == "Call"]
        rank.records = rank.records[: calls[at] + 1]
        rank.calls = at + 1
        rank.done(rank.calls, seconds=6.0, error=TIMED_OUT).fault("RuntimeError", TIMED_OUT, BACKWARD).exit(1)
    return verdict(logs, tmp_path)


def test_ranks_that_each_skip_units_of_their_own_went_apart_at_the_first_of_them(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank, units in zip(logs, ([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [0, 1, 4, 5]), strict=True):
        one_pass(rank, units)

    found = stopped(logs, tmp_path, at=6)

    assert (found.name, found.culprits, found.seq) == ("sequence-divergence", (1,), 1)
    assert "for module blocks.1" in found.summary
    assert any(said.startswith("no two ranks went on with the same calls") for said in found.evidence)


def test_a_rank_that_leaves_a_backward_out_skipped_it(tmp_path: Path) -> None:
    logs = Logs(world_size=4)
    for rank in logs:
        for number in range(4):
            skips = (rank.rank, number) == (1, 2)
            one_pass(rank, [0], backward=not skips)
            if not skips:
                rank.end_step()

    found = stopped(logs, tmp_path, at=2 * 3 + 2)

    assert (found.name, found.culprits, found.step) == ("skipped-steps", (1,), 2)
    assert "(4 forwards but 2 backwards begun)" in found.summary


def test_a_rank_that_evaluates_alone_skipped_nothing(tmp_path: Path) -> None:
    logs = Logs(world_size=4)
    for rank in logs:
        for number in range(4):
            if (rank.rank, number) == (1, 2):
                for _ in range(2):
                    rank.forwards += 1
                    rank.in_phase("forward")
                    for unit in (0, 1):
                        gather(rank, ("train.py:9 main", "train.py:50 evaluate", "train.py:16 forward"), unit)
            one_pass(rank, [0, 1])
            rank.end_step()

    found = stopped(logs, tmp_path, at=2 * 6 + 3)

    assert (found.name, found.culprits, found.site) == ("sequence-divergence", (1,), "train.py:50")
