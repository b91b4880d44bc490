"""Ranks that read addresses of processes that are gone from a store that a restart kept."""

from collections.abc import Collection
from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import Logs, RankLog

JOIN = "train.py:7 main"
REFUSED = (
    "Gloo connectFullMesh failed with [pair.cc:152] timed out connecting: SO_ERROR: Connection refused, "
    "remote=[127.0.0.1]:5005$1"
)


def join(rank: RankLog, seconds: float, said: str) -> None:
    number = rank.begin_phase(
        "init_process_group", JOIN, address="127.0.0.1", port=29500, as_rank=rank.rank, world_size=3
    )
    rank.sleep(seconds).end_phase("init_process_group", number, failed=True)
    rank.fault("RuntimeError", said, JOIN).exit(1)


def restarted(tmp_path: Path, refused: Collection[int], *, attempt: int = 1, late: float = 2.0) -> Verdict:
    """Rank 1 comes first; the others import for a while longer."""
    logs = Logs(world_size=3, attempt=attempt, default_group=False)
    for rank in logs:
        rank.at(3.0 if rank.rank == 1 else 3.0 + late)
        said = REFUSED if rank.rank in refused else "RuntimeError: Connection closed by peer"
        join(rank, 0.06, said)
    return diagnose(logs.load(tmp_path)).verdict


def test_who_is_refused_before_the_others_come_found_addresses_of_those_before(tmp_path: Path) -> None:
    verdict = restarted(tmp_path, (0, 1, 2))

    assert (verdict.name, verdict.culprits, verdict.victims) == ("group-creation-stuck", (), (0, 1, 2))
    assert verdict.summary == (
        "rank 1 found an address in the store at which nobody listens, 127.0.0.1:5005\n"
        "It was refused there before ranks 0,2 had begun to join: the store still holds what attempt 0 left in it."
    )
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in verdict.next_steps[1]


def test_the_first_attempt_has_none_before_it(tmp_path: Path) -> None:
    verdict = restarted(tmp_path, (1,), attempt=0)

    assert "processes that are gone left in it" in verdict.summary
    assert not any("torchrun" in step for step in verdict.next_steps)


def test_who_is_refused_by_one_that_had_come_may_have_lost_it(tmp_path: Path) -> None:
    assert restarted(tmp_path, (1,), late=-1.0).name != "group-creation-stuck"


def test_an_error_of_a_rank_that_came_before_is_graver(tmp_path: Path) -> None:
    logs = Logs(world_size=3, attempt=1, default_group=False)
    logs[0].at(1.0).fault("ImportError", "no module named flash_attn", "train.py:1 main").exit(1)
    for rank in logs.but(0):
        rank.at(3.0 + rank.rank)
        join(rank, 0.06, REFUSED)
    verdict = diagnose(logs.load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits) == ("rank-died", (0,))
