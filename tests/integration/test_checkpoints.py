"""Checkpoints that four real ranks wrote: intact ones pass, each injury is found and named."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from distdiag.analyzers import diagnose
from distdiag.checkpoints import Verification, verify
from distdiag.run import load
from tests import commandline
from tests.checkpoints import INJURIES, WORLD_SIZE, Injury, forget_hashes, saved
from tests.ranks import launch

CAP_SECONDS = 600


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Let four ranks write the checkpoints, once."""
    directory = tmp_path_factory.mktemp("run")
    saved(directory)
    return directory


@pytest.fixture
def copies(checkpoints: Path, tmp_path: Path) -> Path:
    """Return a folder with copies that may be damaged."""
    for name in ("step-2", "step-4", "even"):
        shutil.copytree(checkpoints / name, tmp_path / name)
    return tmp_path


def distdiag(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distdiag", "checkpoint", *arguments],
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=CAP_SECONDS,
    )


def problem_of(found: Verification, kind: str) -> str:
    """Return the sentence about a kind of problem."""
    sentences = [problem.summary for problem in found.problems if problem.kind == kind]
    assert sentences, found.problems
    return sentences[0]


@pytest.mark.parametrize("name", ["step-2", "step-4", "even"])
@pytest.mark.parametrize("hashed", [True, False])
def test_intact_checkpoint_is_whole(name: str, hashed: bool, copies: Path) -> None:
    if not hashed:
        forget_hashes(copies / name)

    found = verify(copies / name)

    assert (found.problems, found.notes, found.action) == ((), (), ())
    assert (found.facts.world_size, found.facts.hashed) == (WORLD_SIZE, "all" if hashed else "none")
    assert bool(found.unknowable) is not hashed


@pytest.mark.parametrize("injury", INJURIES, ids=lambda injury: injury.name)
def test_injury_is_found_and_named_where_the_save_left_hashes(injury: Injury, copies: Path) -> None:
    injury.harm(copies / injury.of)

    found = verify(copies / injury.of)

    assert re.search(injury.names, problem_of(found, injury.kind))
    assert injury.finding in {problem.finding for problem in found.problems}
    assert found.unknowable == () or found.loads.startswith("not at all")


@pytest.mark.parametrize("injury", INJURIES, ids=lambda injury: injury.name)
def test_injury_is_found_without_hashes_or_said_to_be_unknowable(injury: Injury, copies: Path) -> None:
    forget_hashes(copies / injury.of)

    injury.harm(copies / injury.of)
    found = verify(copies / injury.of)

    if injury.bare is None:
        assert found.problems == ()
        assert found.unknowable
    else:
        assert problem_of(found, injury.bare)


@pytest.mark.parametrize("injury", [each for each in INJURIES if each.bare is None], ids=lambda injury: injury.name)
def test_logs_of_the_run_hold_the_hashes_too(injury: Injury, checkpoints: Path, copies: Path) -> None:
    forget_hashes(copies / injury.of)
    injury.harm(copies / injury.of)

    done = commandline.distdiag("checkpoint", "verify", copies / injury.of, "--logs", checkpoints / "logs")

    assert done.returncode == 1, done.stderr
    assert "is not what the run's logs say was written" in done.stdout
    assert "DD702 checkpoint-corrupt" in done.stdout


def _info(told: Any, name: str) -> Any:
    return next(info for index, info in told.storage_data.items() if index.fqn == name and any(index.offset))


def _drop_chunk(told: Any) -> None:
    told.state_dict_metadata["query"].chunks.pop(2)


def _double_chunk(told: Any) -> None:
    told.state_dict_metadata["query"].chunks[2].sizes = torch.Size([5, 8])


def _shrink_tensor(told: Any) -> None:
    told.state_dict_metadata["query"].size = torch.Size([15, 8])


def _retype(told: Any) -> None:
    told.state_dict_metadata["query"].properties.dtype = torch.int32


def _reshape(told: Any) -> None:
    tensor = told.state_dict_metadata["query"]
    tensor.size = torch.Size([16, 7])
    for chunk in tensor.chunks:
        chunk.sizes = torch.Size([4, 7])


def _forget_bytes(told: Any) -> None:
    told.storage_data = {index: info for index, info in told.storage_data.items() if index.fqn != "query"}


def _share_bytes(told: Any) -> None:
    _info(told, "query").offset = _info(told, "key").offset


def _promise_more(told: Any) -> None:
    max(told.storage_data.values(), key=lambda info: (info.relative_path, info.offset)).length += 10


def _leave_folder(told: Any) -> None:
    _info(told, "query").relative_path = "../step-4/__1_0.distcp"


@pytest.mark.parametrize(
    ("lie", "kind", "names"),
    [
        (_drop_chunk, "hole", r"^query\[8:12, 0:8\] is in no shard"),
        (_double_chunk, "covered-twice", r"^query\[8:13, 0:8\] and \[12:16, 0:8\] overlap"),
        (_shrink_tensor, "outside-tensor", r"^query\[12:16, 0:8\] reaches beyond the tensor, which is \[15, 8\]"),
        (_retype, "other-tensor", r"^__0_0\.distcp, bytes .* should hold int32 \[4, 8\] and hold float32 \[4, 8\]"),
        (_reshape, "other-tensor", r"^__0_0\.distcp, bytes .* should hold float32 \[4, 7\] and hold float32 \[4, 8\]"),
        (_forget_bytes, "no-bytes", r"^query\[0:4, 0:8\]: \.metadata does not say where its bytes are"),
        (_share_bytes, "bytes-shared", r"^__1_0\.distcp, bytes \d+-\d+: .* lies on top of .*, which ends at byte"),
        (_promise_more, "truncated", r"^__3_0\.distcp ends at byte \d+ and should have \d+ bytes"),
        (_leave_folder, "outside", r"^\.\./step-4/__1_0\.distcp lies outside the checkpoint's folder"),
    ],
)
def test_metadata_that_do_not_fit_are_found_without_hashes(
    lie: Callable[[Any], None], kind: str, names: str, copies: Path
) -> None:
    forget_hashes(copies / "even")
    path = copies / "even" / ".metadata"
    told = pickle.loads(path.read_bytes())

    lie(told)
    path.write_bytes(pickle.dumps(told))

    assert re.search(names, problem_of(verify(copies / "even"), kind))


def test_extra_shard_is_named_and_is_no_damage(copies: Path) -> None:
    shutil.copy(copies / "step-4" / "__3_0.distcp", copies / "step-4" / "__4_0.distcp")

    found = verify(copies / "step-4")

    assert found.problems == ()
    assert any("__4_0.distcp" in note for note in found.notes)


def test_save_that_began_to_overwrite_another_one_is_found(copies: Path) -> None:
    record = copies / "step-4" / ".distdiag" / "__1_0.distcp.json"
    told = json.loads(record.read_text())
    record.write_text(json.dumps({**told, "wall_ns": told["wall_ns"] + 300_000_000_000}))

    found = verify(copies / "step-4")

    assert re.search(r"^__1_0\.distcp: written \d+ s after \.metadata", problem_of(found, "overwritten"))


def test_hashes_of_a_save_that_was_overwritten_unrecorded_accuse_nobody(copies: Path) -> None:
    shutil.rmtree(copies / "step-4" / ".distdiag")
    shutil.copytree(copies / "step-2" / ".distdiag", copies / "step-4" / ".distdiag")

    found = verify(copies / "step-4")

    assert found.problems == ()
    assert found.facts.hashed == "none"
    assert any("earlier save" in note for note in found.notes)


DEATH = """
import os, signal, sys, warnings
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import distdiag

distdiag.install()
dist.init_process_group("gloo")
rank = dist.get_rank()

class State:
    def __reduce__(self):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return int, (0,)

weights = torch.ones(1000)
dcp.save({"weight": weights, f"state_of_{rank}": 1}, checkpoint_id="step-1")
distdiag.step()
dcp.save({"weight": weights, f"state_of_{rank}": State()}, checkpoint_id="step-2")
"""


def test_rank_that_dies_within_a_save_leaves_what_is_found_in_the_logs_and_on_disk(tmp_path: Path) -> None:
    launch(DEATH, tmp_path, world_size=2)

    report = diagnose(load(tmp_path / "logs"))
    found = verify(tmp_path / "step-2")

    assert (report.verdict.name, report.verdict.culprits) == ("rank-died", (1,))
    incomplete = [finding.summary for finding in report.findings if finding.name == "checkpoint-incomplete"]
    assert len(incomplete) == 1
    assert incomplete[0].startswith(f"checkpoint {tmp_path / 'step-2'} is not whole: rank 0 began to save it in step 1")
    assert problem_of(found, "no-metadata")
    assert found.action[0].startswith(f"use {tmp_path / 'step-1'}")


class Malicious:
    """Metadata that make a file when they are read by torch."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def test_malicious_metadata_run_nothing(copies: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (copies / "step-4" / ".metadata").write_bytes(pickle.dumps(Malicious(mark)))

    verified, drilled = (distdiag(command, str(copies / "step-4")) for command in ("verify", "drill"))

    assert not mark.exists()
    assert (verified.returncode, drilled.returncode) == (1, 1)
    assert "posix.mkdir" in verified.stdout
    assert "do not load it" in verified.stdout


def test_earlier_checkpoint_to_use_is_named(copies: Path) -> None:
    (copies / "step-4" / "__1_0.distcp").unlink()

    done = distdiag("verify", str(copies / "step-4"))

    assert done.returncode == 1
    assert done.stdout.startswith("DAMAGED  __1_0.distcp is not there; it holds ")
    assert "DD701 checkpoint-incomplete" in done.stdout
    assert f"1  use {copies / 'step-2'}" in done.stdout


def test_json_has_every_problem(copies: Path) -> None:
    (copies / "step-4" / "__1_0.distcp").unlink()

    told = json.loads(distdiag("verify", str(copies / "step-4"), "--format", "json").stdout)

    assert (told["schema"], told["outcome"]) == ("distdiag.verification/1", "checkpoint-incomplete")
    assert [(each["kind"], each["file"]) for each in told["problems"]] == [("missing-file", "__1_0.distcp")]


def test_folder_without_a_checkpoint_is_bad_input(tmp_path: Path) -> None:
    done = distdiag("verify", str(tmp_path))

    assert done.returncode == 2
    assert done.stderr == f"error: no checkpoint in {tmp_path}\nhint: pass the folder that holds .metadata\n"


def test_checkpoint_loads_at_other_sizes_of_the_world(copies: Path) -> None:
    worlds = (1, 3, 6)  # of four ranks and tensors of five rows: one gets none
    arguments = [argument for world in worlds for argument in ("--world", str(world))]

    done = distdiag("drill", str(copies / "step-4"), *arguments, "--format", "json")

    assert done.returncode == 0, done.stdout + done.stderr
    trials = json.loads(done.stdout)["trials"]
    assert [each["world_size"] for each in trials] == list(worlds)
    for trial in trials:
        assert (trial["error"], trial["basis"], trial["left_out"]) == ("", "save", [])
        assert trial["chunks"] == trials[0]["chunks"] > trial["tensors"]
        assert trial["peak_bytes"] > trial["grown_bytes"] > 0
