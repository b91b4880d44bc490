"""Programs that start their ranks themselves: each rank is recorded, whoever started it and however."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.commandline import distdiag
from tests.ranks import free_port, line_of, surroundings

PROGRAM = """
import datetime, glob, os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.distributed import init_process_group  # as most examples have it, and before anything records

def train(rank, world_size, port):
    torch.set_num_threads(1)
    if rank == int(os.environ.get("LOST", "-1")):
        while not glob.glob(os.environ["DISTDIAG_DIR"] + "/rank00000.jsonl"):
            time.sleep(0.05)  # until the other has said which rank it is
        raise FileNotFoundError("shard 17")  # LINE shard
    init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size,
        timeout=datetime.timedelta(seconds=20),
    )
    for step in range(5):
        if rank == 1 and step == 3:
            raise ValueError("bad record")  # LINE raise
        dist.all_reduce(torch.ones(4))

if os.environ.get("INSTALL"):
    import distdiag
    distdiag.install()
if __name__ == "__main__":
    mp.start_processes(train, args=(2, int(os.environ["PORT"])), nprocs=2, start_method=os.environ["START"])
"""
TRAINED_BY_TORCHRUN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
WITH_WORKERS = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
import distdiag
distdiag.install()
if __name__ == "__main__":
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    data = TensorDataset(torch.ones(8))
    for batch, in DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="spawn"):
        dist.all_reduce(batch)
    dist.destroy_process_group()
"""
CAP_SECONDS = 150.0
"""Each process imports torch for itself, one after the other on a busy machine."""
NEITHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def ran(program: str, directory: Path, *before: str, **variables: str) -> Path:
    """Run a program to its end, behind ``before``; return its script."""
    script = directory / "train.py"
    script.write_text(textwrap.dedent(program))
    environment = {name: value for name, value in os.environ.items() if name not in NEITHER}
    environment |= {**surroundings(directory), "PORT": str(free_port()), **variables}
    subprocess.run(
        [sys.executable, *before, str(script)], env=environment, cwd=directory, capture_output=True, timeout=CAP_SECONDS
    )
    return script


def logs_in(directory: Path) -> list[str]:
    """Return the logs that name their rank."""
    return sorted(path.name for path in (directory / "logs").glob("rank*.jsonl"))


def verdict_of(directory: Path) -> dict[str, Any]:
    """Return the verdict, after a look at whether all that was recorded is what a launcher would have recorded."""
    report = json.loads(distdiag("analyze", directory / "logs", "--format", "json").stdout)
    assert report["data_quality"]["doubled_ranks"] == {}
    assert not report["attempts"]
    verdict: dict[str, Any] = report["verdict"]
    return verdict


@pytest.mark.parametrize(
    ("recorded", "start"), [("run", "spawn"), ("run", "fork"), ("install", "spawn"), ("install", "forkserver")]
)
def test_ranks_that_a_program_starts_are_recorded(tmp_path: Path, recorded: str, start: str) -> None:
    before = ["-m", "distdiag", "run"] if recorded == "run" else []

    script = ran(PROGRAM, tmp_path, *before, START=start, INSTALL="yes" if recorded == "install" else "")

    verdict = verdict_of(tmp_path)
    assert logs_in(tmp_path) == ["rank00000.jsonl", "rank00001.jsonl"]
    assert (verdict["name"], verdict["culprits"]) == ("rank-died", [1])
    assert verdict["site"] == line_of(script, "raise")


def test_rank_that_failed_before_it_joined_is_the_one_that_is_left(tmp_path: Path) -> None:
    script = ran(PROGRAM, tmp_path, "-m", "distdiag", "run", START="spawn", LOST="1")

    verdict = verdict_of(tmp_path)
    assert (verdict["name"], verdict["culprits"], verdict["site"]) == ("rank-died", [1], line_of(script, "shard"))


def test_number_of_a_schedulers_task_is_not_the_rank_of_what_it_starts(tmp_path: Path) -> None:
    task = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}

    ran(PROGRAM, tmp_path, "-m", "distdiag", "run", START="spawn", **task)

    verdict = verdict_of(tmp_path)
    assert (verdict["name"], verdict["culprits"]) == ("rank-died", [1])


def test_launcher_behind_run_records_the_ranks_that_it_starts(tmp_path: Path) -> None:
    launcher = ["torchrun", "--nproc-per-node", "2", "--master-port", str(free_port())]

    ran(TRAINED_BY_TORCHRUN, tmp_path, "-m", "distdiag", "run", *launcher)

    assert logs_in(tmp_path) == ["rank00000.jsonl", "rank00001.jsonl"]
    assert verdict_of(tmp_path)["name"] == "healthy"


def test_workers_of_a_rank_that_import_its_script_leave_no_logs(tmp_path: Path) -> None:
    ran(WITH_WORKERS, tmp_path)

    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["rank00000.jsonl"]
    assert verdict_of(tmp_path)["name"] == "healthy"
