"""Real ranks that do more than they need: average gradients too often, gather too much at once, save alone."""

from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Finding
from distdiag.run import load
from tests.ranks import launch

ACCUMULATING = """
import contextlib, os
import torch
import torch.distributed as dist
import distdiag

distdiag.install()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(4, 1024)
for step in range(12):
    for micro in range(4):
        alone = os.environ["KIND"] == "no_sync" and micro < 3
        with model.no_sync() if alone else contextlib.nullcontext():
            model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
SHARDED = """
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
import distdiag

distdiag.install()
dist.init_process_group("gloo")
model = torch.nn.Sequential(*(torch.nn.Linear(3072, 3072, bias=False) for _ in range(8)))
if os.environ["KIND"] == "blocks":
    for block in model:
        fully_shard(block)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    model(torch.randn(4, 3072)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def found_in(program: str, directory: Path, kind: str) -> list[Finding]:
    ended = launch(program, directory, variables={"KIND": kind}, forked=True)
    assert [each.code for each in ended] == [0, 0], ended[1].stderr
    return list(diagnose(load(directory / "logs")).findings)


def test_averaging_in_each_micro_step_is_found(tmp_path: Path) -> None:
    findings = found_in(ACCUMULATING, tmp_path, "each")

    (finding,) = [each for each in findings if each.cause == "every-micro-step"]
    assert "in each of 4 micro-steps" in finding.summary


def test_averaging_once_a_step_is_not(tmp_path: Path) -> None:
    assert [each for each in found_in(ACCUMULATING, tmp_path, "no_sync") if each.cause == "every-micro-step"] == []


def test_a_model_that_is_one_unit_is_found(tmp_path: Path) -> None:
    findings = found_in(SHARDED, tmp_path, "whole")

    (finding,) = [each for each in findings if each.name == "coarse-unit"]
    assert finding.summary.startswith("FSDP unit root, the only unit, gathers 288.0 MiB: 100 % of the sharded model")


def test_a_model_of_blocks_is_not(tmp_path: Path) -> None:
    assert [each for each in found_in(SHARDED, tmp_path, "blocks") if each.name == "coarse-unit"] == []
