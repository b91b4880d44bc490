"""Real ranks one of which becomes slower at some step, and a control that pauses to evaluate and to save."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Finding
from distdiag.run import load
from tests.ranks import launch

CHANGE = 45
TRAIN = """
import os, time
import torch
import torch.distributed as dist
import distdiag

distdiag.install()
dist.init_process_group("gloo")
rank, kind = dist.get_rank(), os.environ["KIND"]


class Block(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.02 + 0.04 * (kind == "slower" and rank == 1 and step >= 45))
        return super().forward(x)


step = 0
model = torch.nn.parallel.DistributedDataParallel(Block(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(90):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    if kind == "pausing" and step % 30 == 29:
        with distdiag.phase("evaluate"):
            time.sleep(0.3)
        if rank == 0:
            torch.save(model.module.state_dict(), "newest.pt")
        dist.barrier()
dist.destroy_process_group()
"""


def found_in(directory: Path, kind: str) -> list[Finding]:
    ended = launch(TRAIN, directory, world_size=2, variables={"KIND": kind}, forked=True)
    assert [each.code for each in ended] == [0, 0], ended[1].stderr
    return [each for each in diagnose(load(directory / "logs")).findings if each.code.startswith("DD2")]


def test_the_step_the_rank_and_the_part_are_named(tmp_path: Path) -> None:
    (finding,) = found_in(tmp_path, "slower")

    assert (finding.name, finding.culprits, finding.cause) == ("step-time-change", (1,), "forward")
    assert finding.step == pytest.approx(CHANGE, abs=1)


def test_pauses_for_evaluation_and_checkpoints_are_no_change(tmp_path: Path) -> None:
    assert found_in(tmp_path, "pausing") == []
