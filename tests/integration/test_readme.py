"""What the README shows is what happens."""

import json
import re
from pathlib import Path

import pytest

from distdiag.settings import DEFAULT_DIRECTORY, DEFAULT_MAX_BYTES, DEFAULT_STALL_AFTER_SECONDS
from tests.benchmarks import rivals
from tests.write_readme import COMMAND, FINDINGS, README, TRUTH, findings, printed, truth

TEXT = README.read_text()
LONGEST = 200
"""Lines: what is longer is not read."""


def blocks() -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_first_block_is_what_the_command_in_it_prints() -> None:
    shown = COMMAND.search(TEXT)

    assert shown is not None
    assert shown[0].strip("`\n") == blocks()[0].strip("\n")
    assert shown[3] == printed(shown[2].split())


def test_table_of_findings_is_the_list_of_analyzers() -> None:
    shown = FINDINGS.search(TEXT)

    assert shown is not None
    assert shown[0] == findings()


def test_table_of_verdicts_holds_what_was_counted_of_every_fault_program() -> None:
    shown = TRUTH.search(TEXT)

    assert shown is not None
    assert shown[0] == truth()


@pytest.mark.parametrize("page", [README, rivals.PAGE])
def test_table_beside_others_holds_what_was_measured_last(page: Path) -> None:
    shown = rivals.TABLE.search(page.read_text())

    assert shown is not None
    assert shown[0] == shown[1] + rivals.rows(json.loads(rivals.FIGURES.read_text()))


def test_defaults_of_the_settings_are_those_in_force() -> None:
    assert f"| `DISTDIAG_DIR` | `directory` | where the logs of all ranks go | `{DEFAULT_DIRECTORY}` |" in TEXT
    assert f"| {DEFAULT_STALL_AFTER_SECONDS:g} |" in TEXT
    assert f"| {DEFAULT_MAX_BYTES >> 20} MiB |" in TEXT


def test_each_setup_is_one_command_that_needs_no_global_install() -> None:
    setups = [block for block in blocks() if "pip install" in block]

    assert len(setups) == 2
    for setup in setups:
        assert setup.count("\n") == 1
        assert setup.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_readme_is_short() -> None:
    assert TEXT.count("\n") <= LONGEST
