"""Reports made by hand, for the tests of reporters and commands."""

import dataclasses
from typing import Any

from distdiag.findings import Confidence, Finding, Position, Report, Severity, Verdict

STUCK = Verdict(
    name="rank-missing",
    code="DD301",
    summary="rank 5 never entered all_gather 1842 of group dp (8 ranks), step 120\n"
    "It has been in its data loader for 611 s (dataset.py:31); ranks 0-4,6,7 wait for it at train.py:88.",
    culprits=(5,),
    victims=(0, 1, 2, 3, 4, 6, 7),
    group="dp",
    seq=1842,
    op="all_gather",
    step=120,
    site="/job/dataset.py:31",
    sites={**dict.fromkeys((0, 1, 2, 3, 4, 6, 7), "/job/train.py:88"), 5: "/job/dataset.py:31"},
    cause="data-loading",
    confidence=Confidence.HIGH,
    evidence=(
        "8 of 8 logs whole, nothing dropped, clocks aligned to 0.4 ms",
        "rank 5's data time grew from 12 ms to 8.2 s over its last 14 steps; the others' stayed at 12 ms",
    ),
    next_steps=(
        "look at samples 88121-88128, batch 120 of rank 5",
        "py-spy shows read() on /data: check that mount on the host of rank 5 (node3)",
    ),
)

FINDING = Finding(
    code="DD201",
    name="compute-straggler",
    severity=Severity.WARNING,
    summary="rank 2 computes 1.5x slower than its peers",
    culprits=(2,),
)


def position(rank: int, **changes: Any) -> Position:
    """A rank that waits for the others."""
    waiting = Position(
        rank=rank,
        step=120,
        phase="forward",
        where="/job/train.py:88 train",
        doing="all_gather 1842 of group dp",
        since_seconds=611.0,
        last="reduce_scatter 1841, train.py:90",
    )
    return dataclasses.replace(waiting, **changes)


def stuck(**changes: Any) -> Report:
    """Eight ranks, of which rank 5 is stuck in its data loader."""
    late = {"phase": "data", "where": "/job/dataset.py:31 read_shard", "doing": "data loading", "since_seconds": 611.2}
    report = Report(
        verdict=STUCK,
        findings=(FINDING,),
        positions=tuple(position(rank, **(late if rank == 5 else {})) for rank in range(8)),
        triage={
            "Last step and collective of each rank": "step 120 on all ranks; rank 5 completed reduce_scatter 1841",
            "An earlier OOM, NaN or data fault anywhere": "none in these logs; NaN is not recorded unless you say loss",
        },
        performance={"ranks": {10: {"own_ms": 1.5}, 9: {"own_ms": float("nan")}}},
        data_quality={"missing": [], "files": 8},
    )
    return dataclasses.replace(report, **changes)


def healthy(**changes: Any) -> Report:
    """Four ranks that trained well."""
    verdict = Verdict(name="healthy", summary="4 ranks trained 20 steps and nothing went wrong")
    return stuck(**{"verdict": verdict, "findings": (), "positions": tuple(map(position, range(4))), **changes})
