"""Reports of c10d's desync debugging: who lags, at which collective, and who only waited."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.importers import load
from tests import training_output as out

REPORT = "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:"
SNAPSHOT = "\t - Snapshot of ranks' latest states:"


def behind(ranks: str, seq: int) -> str:
    return f"\t     [{ranks}] finished collective #{seq - 1}, but didn't join collective #{seq} (count from 1)"


def states(seq: int, edge: str, ranks: str, op: str) -> list[str]:
    return [f"\t   #{seq} {edge} ranks:", f"\t     [{ranks}] {edge} {op}"]


def verdict_of(directory: Path, *parts: str | Sequence[str]) -> Verdict:
    (directory / "train.log").write_text(out.text(*parts))
    return diagnose(load(directory)).verdict


def test_ranks_that_did_not_join_are_named_with_the_collective(tmp_path: Path) -> None:
    snapshot = [
        SNAPSHOT,
        *states(40, "finished", "3", "ALLREDUCE"),
        *states(41, "started", "0, 1, 2", "_ALLGATHER_BASE"),
    ]

    verdict = verdict_of(tmp_path, REPORT, behind("3", 41), snapshot)

    assert (verdict.culprits, verdict.seq, verdict.op) == ((3,), 41, "all_gather_into_tensor")


def test_ranks_that_never_joined_anything_are_named(tmp_path: Path) -> None:
    said = "ranks [2, 5] are the lagging ranks that caused this timeout. They never joined any collectives"

    verdict = verdict_of(tmp_path, f"\t - To our best knowledge, {said}")

    assert (verdict.name, verdict.culprits, verdict.seq) == ("rank-missing", (2, 5), 1)


@pytest.mark.parametrize("ranks", ["0, 1, 2, 3", "1"])
def test_ranks_that_began_it_are_accused_of_nothing(tmp_path: Path, ranks: str) -> None:
    said = f"\t   - [{ranks}] joined but didn't finish collective #41 (count from 1)"
    waits = [out.watchdog(rank, 41) for rank in range(4)]

    verdict = verdict_of(tmp_path, *waits, REPORT, said, [SNAPSHOT, *states(41, "started", ranks, "ALLREDUCE")])

    assert verdict.culprits == ()
    assert any("began collective 41 and did not end it" in evidence for evidence in verdict.evidence)
