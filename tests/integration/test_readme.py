"""What the README shows is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

from distdiag.analyzers import ANALYZERS
from distdiag.commands.explain import headline
from distdiag.settings import DEFAULT_DIRECTORY, DEFAULT_MAX_BYTES, DEFAULT_STALL_AFTER_SECONDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LONGEST = 200


def blocks() -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def test_first_block_is_what_the_command_in_it_prints() -> None:
    command, _, shown = blocks()[0].partition("\n")
    arguments = command.removeprefix("$ distdiag ").split()
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}

    done = subprocess.run(
        [sys.executable, "-m", "distdiag", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert command.startswith("$ distdiag analyze sample_logs/")
    assert done.stdout == shown, done.stderr


def test_table_of_findings_is_the_list_of_analyzers() -> None:
    rows = re.findall(r"^\| (DD\d+) \| `([a-z0-9-]+)` \| (.*) \|$", README, flags=re.MULTILINE)

    assert rows == sorted((each.CODE, each.NAME, headline(each)) for each in ANALYZERS)


def test_defaults_of_the_settings_are_those_in_force() -> None:
    assert f"| `DISTDIAG_DIR` | `directory` | where the logs of all ranks go | `{DEFAULT_DIRECTORY}` |" in README
    assert f"| {DEFAULT_STALL_AFTER_SECONDS:g} |" in README
    assert f"| {DEFAULT_MAX_BYTES >> 20} MiB |" in README


def test_each_setup_is_one_command_that_needs_no_global_install() -> None:
    setups = [block for block in blocks() if "pip install" in block]

    assert len(setups) == 2
    for setup in setups:
        assert setup.count("\n") == 1
        assert setup.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_readme_is_short() -> None:
    assert README.count("\n") <= LONGEST
