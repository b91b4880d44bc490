"""What the doctor finds: where it is well, and what it says of each thing that is not."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from distdiag import doctor
from distdiag.commands.doctor import command
from distdiag.doctor import BAD, GOOD, NOTE, Check, examine

CHEAP = ("_switched_on", "_log_directory", "_shared_memory", "_variables", "_clock")
"""Checks that start no process."""


@pytest.fixture(autouse=True)
def _only_cheap_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", tuple(getattr(doctor, name) for name in CHEAP))


def found(checks: tuple[Check, ...], subject: str) -> Check:
    (check,) = [each for each in checks if each.subject == subject]
    return check


def test_a_directory_that_can_be_written_to_is_well_and_left_as_it_was(tmp_path: Path) -> None:
    directory = tmp_path / "logs"

    checks = examine(directory, {})

    assert found(checks, "log directory").state == GOOD
    assert found(checks, "recording").state == GOOD
    assert not directory.exists()


def test_the_space_that_is_needed_follows_the_cap_of_a_log(tmp_path: Path) -> None:
    small, huge = (
        found(examine(tmp_path, {"DISTDIAG_MAX_BYTES": str(cap)}), "free space") for cap in (1 << 20, 1 << 50)
    )

    assert (small.state, huge.state) == (GOOD, NOTE)
    assert "free space" not in {check.subject for check in examine(tmp_path, {"DISTDIAG_MAX_BYTES": "much"})}


def test_a_directory_that_cannot_be_made_is_bad(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    check = found(examine(tmp_path / "file" / "logs", {}), "log directory")

    assert check.state == BAD
    assert "no log can be written" in check.told


def test_a_file_system_that_does_not_answer_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "within_patience", lambda ask, otherwise: otherwise)

    assert "does not answer" in found(examine(tmp_path, {}), "log directory").told


def test_logs_for_a_network_file_system_are_written_locally_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "is_network_filesystem", lambda path: True)
    monkeypatch.setattr(doctor, "local_directory", lambda path: tmp_path / "local")

    check = found(examine(tmp_path / "logs", {}), "log directory")

    assert check.state == GOOD
    assert str(tmp_path / "local") in check.told
    assert "ships" in check.told


def test_recording_that_is_switched_off_or_set_wrongly_is_bad(tmp_path: Path) -> None:
    assert found(examine(tmp_path, {"DISTDIAG": "off"}), "recording").state == BAD
    assert found(examine(tmp_path, {"DISTDIAG_STALL_AFTER": "soon"}), "recording").told.startswith(
        "DISTDIAG_STALL_AFTER='soon'"
    )


@pytest.mark.parametrize(
    ("name", "hinders", "harmless"),
    [
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "0", "2000"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "1"),
        ("TORCH_NCCL_BLOCKING_WAIT", "1", "0"),
        ("CUDA_LAUNCH_BLOCKING", "1", "0"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", "INFO"),
        ("NCCL_DEBUG", "INFO", "WARN"),
        ("PYTHONOPTIMIZE", "1", ""),
    ],
)
def test_a_setting_is_told_where_it_matters_and_only_there(
    tmp_path: Path, name: str, hinders: str, harmless: str
) -> None:
    check = found(examine(tmp_path, {name: hinders}), name)

    assert check.state == NOTE
    assert f"{name}={hinders}" in check.told
    assert check.hint
    assert name not in {each.subject for each in examine(tmp_path, {name: harmless})}
    assert name not in {each.subject for each in examine(tmp_path, {})}


def test_a_collective_is_run_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(doctor, "CHECKS", (doctor._torch,))

    check = found(examine(tmp_path, dict(os.environ)), "a collective")

    assert check.state == GOOD
    assert "was run and recorded" in check.told


def test_the_command_says_in_its_exit_code_whether_something_hinders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISTDIAG", "DISTDIAG_STALL_AFTER"):
        monkeypatch.delenv(name, raising=False)
    well = CliRunner().invoke(command, [str(tmp_path), "--format", "json"], standalone_mode=False)
    monkeypatch.setenv("DISTDIAG", "off")
    ill = CliRunner().invoke(command, [str(tmp_path)], standalone_mode=False)

    assert (well.return_value, ill.return_value) == (0, 1)
    assert json.loads(well.output)["schema"] == "distdiag.doctor/1"
    assert ill.output.startswith("1 thing would keep a job")
    assert "DISTDIAG=off switches recording off" in ill.output
