"""``distdiag checkpoint``: what the commands say and return beside what verification finds."""

import argparse
import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from click.testing import CliRunner, Result

from distdiag.cli import cli
from distdiag.errors import DistdiagError
from tests.recordings import lonely_world, recording

dcp: Any = torch.distributed.checkpoint

KINDS = {
    "plain": torch.arange(3_000.0).reshape(100, 30),
    "transposed": torch.arange(600.0).reshape(20, 30).t(),
    "half": torch.randn(33, 5).to(torch.bfloat16),
    "eight": torch.randn(16, 4).to(torch.float8_e4m3fn),
    "complex": torch.randn(9, 2, dtype=torch.complex64),
    "flags": torch.tensor([True, False, True]),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "empty": torch.empty(0, 4),
    "config": argparse.Namespace(depth=3),
    "rates": [0.1, 0.2],
}


def written(directory: Path, state: dict[str, Any], logs: Path | None = None) -> Path:
    """Save a state as the only rank, recorded if there is a folder for logs."""
    with warnings.catch_warnings(), lonely_world():
        warnings.simplefilter("ignore")
        if logs is None:
            dcp.save(state, checkpoint_id=directory)
        else:
            with recording(logs):
                dcp.save(state, checkpoint_id=directory)
    return directory


def distdiag(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["checkpoint", *arguments], standalone_mode=False)


def test_every_kind_of_tensor_comes_out_of_a_drill_as_it_was_saved(tmp_path: Path) -> None:
    directory = written(tmp_path / "saved", KINDS)

    done = distdiag("drill", str(directory), "--world", "2", "--format", "json")

    (trial,) = json.loads(done.output)["trials"]
    assert (trial["error"], trial["basis"], trial["left_out"]) == ("", "file", ["config"])
    assert trial["chunks"] == 7
    assert done.return_value == 0


def test_what_was_not_loaded_and_why_is_said(tmp_path: Path) -> None:
    found = distdiag("verify", str(written(tmp_path / "saved", KINDS)))

    assert found.return_value == 0
    assert "config is made of argparse.Namespace, which was not looked into" in found.output


def test_drill_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    directory = written(tmp_path / "saved", {"weight": torch.ones(3)})

    done = distdiag("drill", str(directory), "--world", "1", "--timeout", "0.05")

    assert done.return_value == 1
    assert done.output.startswith("DOES NOT LOAD  at 1 rank it does not load: it was not done after 0.05 s")


def test_drill_says_that_it_needs_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = written(tmp_path / "saved", {"weight": torch.ones(3)})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    done = distdiag("drill", str(directory))

    assert isinstance(done.exception, DistdiagError)
    assert "torch is not installed here" in done.exception.message
    assert "distdiag checkpoint verify needs none" in done.exception.hint


def test_drill_of_a_single_file_is_bad_input(tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / "model.pt")

    done = distdiag("drill", str(tmp_path / "model.pt"))

    assert isinstance(done.exception, DistdiagError)
    assert "nothing to split anew" in done.exception.hint


@pytest.mark.parametrize(("option", "value", "says"), [("--step", "7", "saved at step 0, not at step 7")])
def test_step_that_was_asked_for_is_compared(option: str, value: str, says: str, tmp_path: Path) -> None:
    directory = written(tmp_path / "saved", {"weight": torch.ones(3)}, tmp_path / "logs")

    done = distdiag("verify", str(directory), option, value)

    assert done.return_value == 1
    assert says in done.output


def test_quick_look_says_that_it_did_not_read(tmp_path: Path) -> None:
    directory = written(tmp_path / "saved", {"weight": torch.ones(3)})

    done = distdiag("verify", str(directory), "--quick")

    assert "by names and sizes; its contents were not read" in " ".join(done.output.split())
    assert not (directory / ".distdiag").exists()


def test_outcome_is_noted_inside_the_checkpoint_unless_told_not_to(tmp_path: Path) -> None:
    directory = written(tmp_path / "saved", {"weight": torch.ones(3)})

    distdiag("verify", str(directory), "--no-stamp")
    before = (directory / ".distdiag").exists()
    distdiag("verify", str(directory))

    assert not before
    assert json.loads((directory / ".distdiag" / "verified.json").read_text())["outcome"] == "whole"


def test_checkpoint_that_may_not_be_written_to_is_verified_all_the_same(tmp_path: Path) -> None:
    directory = written(tmp_path / "saved", {"weight": torch.ones(3)})
    (directory / ".distdiag").touch()  # no folder can be made there

    assert distdiag("verify", str(directory)).return_value == 0


def test_logs_that_know_nothing_of_a_checkpoint_are_said(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"weight": torch.ones(3)}, tmp_path / "logs")
    other = written(tmp_path / "other", {"weight": torch.ones(3)})

    known = distdiag("verify", str(one), "--logs", str(tmp_path / "logs"))
    unknown = distdiag("verify", str(other), "--logs", str(tmp_path / "logs"))

    assert known.return_value == 0
    assert isinstance(unknown.exception, DistdiagError)
    assert "tell of no save of" in unknown.exception.message
