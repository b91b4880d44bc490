"""Pages that people read: they exist for each task, and what they name exists."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from distdiag import cli
from distdiag.analyzers import ANALYZERS
from distdiag.commands import help as pages
from distdiag.errors import DistdiagError

TASKS = {"hangs", "slow", "memory", "checkpoints", "live", "fleet", "scale", "privacy", "cost"}
ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"distdiag ([a-z-]+)((?: [^`\n]*)?)")
OPTION = re.compile(r"(?<!\S)--[a-z-]+")


def commands() -> dict[str, click.Command]:
    context = click.Context(cli.cli)
    found = {name: cli.cli.get_command(context, name) for name in cli.cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def named(text: str) -> list[tuple[str, str]]:
    """Return the commands that a page names in code, each with its arguments."""
    code = re.findall(r"`([^`]+)`", text.replace("\n", " ")) + re.findall(r"^    (.+)$", text, re.MULTILINE)
    return [(match[1], match[2]) for each in code for match in COMMAND.finditer(each)]


def options_of(command: click.Command) -> set[str]:
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(command, click.Group):
        for each in command.commands.values():
            found |= options_of(each)
    return found


def test_there_is_a_page_for_each_task() -> None:
    assert set(pages.topics()) == TASKS


@pytest.mark.parametrize("topic", sorted(TASKS))
def test_commands_and_options_that_a_page_names_exist(topic: str) -> None:
    known = commands()
    for name, arguments in named(pages.topics()[topic]):
        assert name in known, name
        if name != "run":
            assert set(OPTION.findall(arguments)) <= options_of(known[name]), arguments


@pytest.mark.parametrize("topic", sorted(TASKS))
def test_findings_and_scripts_that_a_page_names_exist(topic: str) -> None:
    text = pages.topics()[topic]
    names = {each.NAME for each in ANALYZERS}
    hyphened = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text))
    assert hyphened <= names
    scripts = set(re.findall(r"`([a-z_]+\.py)`", text))
    assert all((ROOT / "tests" / "benchmarks" / script).exists() for script in scripts)


def test_pages_name_most_commands() -> None:
    """Otherwise the tests above look at nothing."""
    told = {name for text in pages.topics().values() for name, _ in named(text)}
    assert told >= {"analyze", "checkpoint", "ctl", "doctor", "explain", "memory", "stacks", "trace", "watch"}


def test_a_page_is_shown_and_a_wrong_name_is_helped() -> None:
    shown = CliRunner().invoke(pages.command, ["hangs"], standalone_mode=False)
    assert shown.output.startswith("# The job hangs")
    assert CliRunner().invoke(pages.command, [], standalone_mode=False).output.count("\n") == len(TASKS)
    with pytest.raises(DistdiagError, match="no page called hang"):
        pages.page("hang")
