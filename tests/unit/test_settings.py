"""Settings of recording: arguments first, variables otherwise, and what launchers say about ranks."""

from pathlib import Path

import pytest

from distdiag import settings
from distdiag.errors import DistdiagError


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no", "false", " disabled "])
def test_words_that_switch_everything_off(word: str) -> None:
    assert settings.is_off({"DISTDIAG": word})


@pytest.mark.parametrize("word", ["", "on", "1", "yes"])
def test_other_words_leave_it_on(word: str) -> None:
    assert not settings.is_off({"DISTDIAG": word})


def test_arguments_win_over_variables(tmp_path: Path) -> None:
    environ = {"DISTDIAG_DIR": "/elsewhere", "DISTDIAG_STALL_AFTER": "5", "DISTDIAG_MAX_BYTES": "1000"}

    resolved = settings.resolve(tmp_path, stall_after=7.5, max_bytes=2000, environ=environ)

    assert (resolved.directory, resolved.stall_after_seconds, resolved.max_bytes) == (tmp_path, 7.5, 2000)


def test_variables_win_over_defaults(tmp_path: Path) -> None:
    environ = {
        "DISTDIAG_DIR": str(tmp_path),
        "DISTDIAG_STALL_AFTER": "5",
        "DISTDIAG_MAX_BYTES": "1e6",
        "DISTDIAG_PULSE_SECONDS": "0.25",
        "DISTDIAG_NATIVE_STACKS": "off",
    }

    resolved = settings.resolve(environ=environ)

    assert resolved == settings.Settings(
        directory=tmp_path, stall_after_seconds=5, max_bytes=1_000_000, pulse_seconds=0.25, native_stacks=False
    )


def test_defaults_are_those_of_the_manual() -> None:
    resolved = settings.resolve(environ={})

    assert resolved == settings.Settings(
        directory=Path.cwd() / "distdiag_logs",
        stall_after_seconds=60,
        max_bytes=256 << 20,
        pulse_seconds=1,
        native_stacks=True,
    )


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_setting_that_is_no_positive_number_is_named_with_a_hint(text: str) -> None:
    with pytest.raises(DistdiagError) as raised:
        settings.resolve(environ={"DISTDIAG_STALL_AFTER": text})

    assert f"DISTDIAG_STALL_AFTER='{text}'" in raised.value.message
    assert "DISTDIAG_STALL_AFTER=60" in raised.value.hint


@pytest.mark.parametrize("variable", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_rank_is_told_by_any_launcher(variable: str) -> None:
    assert settings.whole_number(settings.RANK_VARIABLES, {variable: "12"}) == 12


def test_variable_that_is_no_number_is_passed_over() -> None:
    assert settings.whole_number(settings.RANK_VARIABLES, {"RANK": "", "SLURM_PROCID": "3"}) == 3
    assert settings.whole_number(settings.RANK_VARIABLES, {"RANK": "none"}) is None


def test_all_ranks_of_a_launch_name_it_alike() -> None:
    launch = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}

    names = {settings.run_name({**launch, "RANK": str(rank)}) for rank in range(4)}

    assert names == {"node0:29500"}
    assert settings.run_name({**launch, "TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "77"}) == "77@node0:29500"


def test_secrets_are_not_logged() -> None:
    logged = settings.logged_settings(
        {"NCCL_DEBUG": "INFO", "TORCH_HUB_TOKEN": "t", "DISTDIAG_API_KEY": "k", "HOME": "/root", "NCCL_PASSWORD": "p"}
    )

    assert logged == {"NCCL_DEBUG": "INFO"}
