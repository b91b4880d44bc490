"""Output of several processes that was put together, one behind the other: the order of its lines tells no time."""

from collections.abc import Callable
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.importers import load
from tests import training_output as out

TRAIN = ("/app/train.py", 31, "collate")
AGENT = "W1206 18:40:05.000000 9 torch/distributed/elastic/multiprocessing/api.py:897]"
ENDED = f"{AGENT} Sending process 7 closing signal SIGTERM"
PREFIXES: dict[str, Callable[[int], str]] = {
    "torchrun --tee": lambda rank: f"[default{rank}]:",
    "kubectl logs --prefix": lambda rank: f"[pod/train-worker-{rank}/pytorch] ",
    "stern": lambda rank: f"train-worker-{rank} pytorch ",
    "docker compose": lambda rank: f"train-{rank + 1}  | ",
    "pdsh": lambda rank: f"gpu-{rank}: ",
}


def told(directory: Path, *lines: str) -> Verdict:
    (directory / "all.log").write_text("\n".join(lines) + "\n")
    return diagnose(load(directory)).verdict


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_an_error_without_a_moment_explains_why_its_rank_did_not_come(
    prefix: Callable[[int], str], tmp_path: Path
) -> None:
    failed = out.traceback("KeyError: 'labels'", TRAIN, rank=2)
    printed = {rank: [out.watchdog(rank, 41)] for rank in (0, 1, 3)} | {2: failed}

    verdict = told(tmp_path, *(prefix(rank) + line for rank in range(4) for line in printed[rank]))

    assert (verdict.name, verdict.culprits, verdict.victims) == ("rank-died", (2,), (0, 1, 3))
    assert verdict.site == "/app/train.py:31"


@pytest.mark.parametrize("before", [ENDED, out.dump_signal(2, 40, 40, " rank 0")])
def test_an_error_that_is_known_to_be_late_is_told_and_is_no_cause(before: str, tmp_path: Path) -> None:
    failed = out.traceback("RuntimeError: DataLoader worker (pid 7) exited unexpectedly", TRAIN, rank=2)

    verdict = told(tmp_path, *(out.watchdog(rank, 41) for rank in (0, 1, 3)), before, *failed)

    assert (verdict.name, verdict.culprits) == ("rank-missing", (2,))
    assert "failed after others had given up: RuntimeError: DataLoader worker" in " ".join(verdict.evidence)


def test_an_error_in_the_middle_of_a_long_log_is_found(tmp_path: Path) -> None:
    steps = [f"step {step} loss 2.0 {'.' * 100}" for step in range(1000)]

    verdict = told(tmp_path, *steps, *out.traceback("KeyError: 'labels'", TRAIN, rank=2), *steps)

    assert (verdict.name, verdict.culprits) == ("rank-died", (2,))


def test_an_error_in_a_file_without_moments_comes_before_whoever_gave_up_first(tmp_path: Path) -> None:
    (tmp_path / "node1.log").write_text("\n".join(out.traceback("KeyError: 'labels'", TRAIN, rank=2)) + "\n")

    verdict = told(tmp_path, *(out.watchdog(rank, 41, clock=f"18:40:0{rank * 3}.000000001") for rank in (0, 1, 3)))

    assert (verdict.name, verdict.culprits) == ("rank-died", (2,))
