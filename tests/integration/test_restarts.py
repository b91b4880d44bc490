"""A real job that torchrun starts anew when a rank dies: what was kept of it, and what the deaths cost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Report, as_json
from distdiag.run import load
from tests.ranks import free_port, surroundings

CAP_SECONDS = 400
TRAIN = """
import os, signal, sys, time
import torch
import torch.distributed as dist
import distdiag

distdiag.install()
folder, attempt = sys.argv[1], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/meeting{attempt}", rank=int(os.environ["RANK"]), world_size=2
)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
checkpoint, begin = f"{folder}/newest.pt", 0
if os.path.exists(checkpoint):
    state = torch.load(checkpoint)
    model.module.load_state_dict(state["model"])
    begin = state["step"]
for step in range(begin, 40):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    if (step + 1) % 10 == 0:
        if dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "step": step + 1}, checkpoint)
        dist.barrier()
    if (step, attempt, dist.get_rank()) == (16, 0, 1):
        raise MemoryError("no memory left")
    if (step, attempt, dist.get_rank()) == (33, 1, 1):
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("job")
    script = folder / "train.py"
    script.write_text(TRAIN)
    launcher = ("-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "2")
    done = subprocess.run(
        [
            *(sys.executable, *launcher, "--monitor-interval", "0.1"),
            *("--master-addr", "127.0.0.1", "--master-port", str(free_port()), str(script), str(folder)),
        ],
        env={**os.environ, **surroundings(folder)},
        capture_output=True,
        text=True,
        timeout=CAP_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return diagnose(load(folder / "logs"))


def test_attempts_go_on_from_the_checkpoint_that_they_loaded(report: Report) -> None:
    assert [(row["attempt"], row["first_step"], row["steps"]) for row in report.attempts] == [
        (0, 0, 17),
        (1, 10, 24),
        (2, 30, 10),
    ]
    assert [row["resumed_by"] for row in report.attempts] == ["first attempt", "checkpoint", "checkpoint"]


def test_steps_that_were_made_again_are_not_kept(report: Report) -> None:
    assert report.goodput is not None
    assert (report.goodput["kept_steps"], report.goodput["steps"]) == (40, 51)
    assert [row["kept_steps"] for row in report.attempts] == [10, 20, 10]


def test_each_failure_has_its_rank_and_its_cost(report: Report) -> None:
    ends = [(row["ended_by"]["name"], row["ended_by"]["culprits"]) for row in report.attempts]

    assert ends[1:] == [("rank-died", [1]), ("healthy", [])]
    assert ends[0][1] == [1]
    assert report.attempts[1]["standstill_seconds"] >= 1.0  # it slept before it was killed
    assert all(row["restart_seconds"] > 0 for row in report.attempts[:2])


def test_times_add_up_to_that_of_the_job(report: Report) -> None:
    assert report.goodput is not None
    known = report.goodput
    assert 0 < known["kept_seconds"] + known["lost_seconds"] < known["wall_seconds"]
    assert known["share"] == pytest.approx(known["kept_seconds"] / known["wall_seconds"], abs=1e-3)


def test_the_lineage_is_part_of_the_json(report: Report, tmp_path: Path) -> None:
    written = json.loads(json.dumps(as_json(report)))

    assert written["goodput"]["summary"].startswith("3 attempts in ")
    assert "lost: " in written["goodput"]["summary"]
