"""Lines behind something that nobody told of: tracebacks show where it ends, and whose it is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.importers import load
from tests import training_output as out

TRAIN = ("/app/train.py", 31, "collate")
KEY_ERROR = out.traceback("KeyError: 'labels'", TRAIN)
AGENT = "[2025-12-06 18:40:00,1] [ERROR] [launch.py:325:sigkill_handler]"
HEADS: dict[str, Callable[[int], str]] = {
    "the clock alone": lambda rank: f"18:11:0{rank}.680 ",
    "the clock before an actor of Ray": lambda rank: f"11:31:42.990 (WorkerDict pid={100 + rank}) ",
    "loguru": lambda rank: f"2025-12-06 18:30:00.123 | ERROR    | __main__:main:40 - [rank{rank}] ",
    "determined": lambda rank: f"fa88a9df [rank={rank}] || ",
    "milabench": lambda rank: "dinov2-nodes.cn-d004 [stderr] ",
    "kubetail": lambda rank: f"[llm-worker-{rank} pytorch] ",
    "addresses of hosts": lambda rank: f"10.0.0.{rank + 1}: ",
    "prterun": lambda rank: f"[prterun-h-123@1,{rank}]<stderr>: ",
    "a rank of a world": lambda rank: f"[R{rank}/4] ",
    "a rank and its mesh": lambda rank: f"[Rank {rank} | DP {rank // 2} TP {rank % 2}] ",
}


def told(directory: Path, *lines: str) -> Verdict:
    (directory / "all.log").write_text("\n".join(lines) + "\n")
    return diagnose(load(directory)).verdict


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_traceback_is_read_behind_anything(head: Callable[[int], str], tmp_path: Path) -> None:
    printed = {rank: [out.watchdog(rank, 41)] for rank in (0, 1, 3)} | {2: KEY_ERROR}

    verdict = told(tmp_path, *(head(rank) + line for rank in range(4) for line in printed[rank]))

    assert (verdict.name, verdict.culprits, verdict.site) == ("rank-died", (2,), "/app/train.py:31")


def test_tracebacks_behind_unknown_heads_are_told_apart(tmp_path: Path) -> None:
    other = out.traceback("ValueError: 3 columns", ("/app/data.py", 7, "read"))
    lines = [f"[R{rank}/4] {line}" for pair in zip(KEY_ERROR, other, strict=True) for rank, line in enumerate(pair, 1)]

    verdict = told(tmp_path, *lines)

    assert "rank 1: KeyError: 'labels' (train.py:31)" in verdict.summary
    assert "rank 2: ValueError: 3 columns (data.py:7)" in verdict.summary


def test_who_speaks_last_behind_the_same_head_is_not_who_failed(tmp_path: Path) -> None:
    head = "cn-d004 [stderr] "

    verdict = told(
        tmp_path, *(head + line for line in (out.watchdog(0, 41), *KEY_ERROR, out.watchdog(3, 41), out.watchdog(1, 41)))
    )

    assert (verdict.name, verdict.culprits) == ("rank-died", (2,))


def test_a_traceback_behind_a_line_that_was_not_ended_is_read(tmp_path: Path) -> None:
    verdict = told(tmp_path, "loading shard 3 of 8 ... " + KEY_ERROR[0], *KEY_ERROR[1:])

    assert verdict.site == "/app/train.py:31"


@pytest.mark.parametrize("name", ["node{host}/none_x/attempt_0/{local}/stderr.log", "pool{host}-rank{local}.log"])
def test_names_with_ranks_on_a_host_accuse_no_other_rank(name: str, tmp_path: Path) -> None:
    for rank in range(4):
        file = tmp_path / name.format(host=rank // 2, local=rank % 2)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(KEY_ERROR if rank == 2 else [out.watchdog(rank, 41)]) + "\n")

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits, verdict.victims) == ("rank-died", (2,), (0, 1, 3))


@pytest.mark.parametrize(
    ("others", "before"),
    [
        ((out.old_watchdog(4, seq=41), out.old_watchdog(5, seq=41), out.old_watchdog(7, seq=41)), ""),
        ((f"{AGENT} ['python', '-u', 't.py', '--local_rank=3'] exits with return code = 1",), ""),
        (tuple(f"[default1]:{line}" for line in out.traceback(out.gloo_closed(), TRAIN)), "[default0]:"),
    ],
)
def test_the_number_of_a_host_is_no_rank(others: tuple[str, ...], before: str, tmp_path: Path) -> None:
    first = [
        line.replace("Rank 5", "Rank 1").replace("Rank 4", "Rank 0").replace("Rank 7", "Rank 2") for line in others
    ]
    (tmp_path / "node-0.log").write_text("\n".join(first) + "\n")
    (tmp_path / "node-1.log").write_text("\n".join([*others, *(before + line for line in KEY_ERROR)]) + "\n")

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits) == ("rank-died", ())
    assert verdict.site == "/app/train.py:31"
