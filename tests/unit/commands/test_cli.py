"""The command line: exit codes, and errors that are lines, not tracebacks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from distdiag import commands
from distdiag.analyzers import ANALYZERS
from distdiag.cli import COMMANDS, cli
from tests.logs import Logs

CAP_SECONDS = 150
HEAVY = ("torch", "pandas", "duckdb", "ibis", "rich", "numpy")


def healthy_logs(directory: Path) -> Path:
    logs = Logs(world_size=2)
    for rank in logs:
        for _ in range(3):
            rank.all_reduce()
            rank.end_step()
        rank.exit()
    return logs.write(directory)


def distdiag(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distdiag", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=CAP_SECONDS,
    )


@pytest.mark.parametrize("arguments", [(), ("--help",), ("analyze", "--help"), ("explain", "-h"), ("demo", "--list")])
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        "from distdiag.cli import cli\n"
        f"try: cli({list(arguments)!r})\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=CAP_SECONDS)

    assert done.stderr.endswith("[]\n")


def test_help_names_every_command() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output

    assert all(f"\n  {name} " in shown for name in ("analyze", "demo", "explain", "run"))


def test_every_module_of_a_command_is_one() -> None:
    modules = {path.stem for path in Path(commands.__file__).parent.glob("[a-z]*.py")}

    assert {name.replace("-", "_") for name in COMMANDS} | {"run"} == modules


def test_run_is_reached_through_the_group_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from distdiag.cli import cli; cli(['run', 'nowhere.py', '--lr', '3'])"],
        capture_output=True,
        text=True,
        timeout=CAP_SECONDS,
    )

    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: no such script: nowhere.py")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python3", ["error: python3 is no script of Python's", "hint: leave it out: distdiag run train.py"]),
        (
            "env",
            ["error: env is no script of Python's", "hint: put distdiag run behind it, before the training script"],
        ),
    ],
)
def test_run_of_a_command_that_is_not_pythons_says_where_it_belongs(command: str, said: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "distdiag", "run", command, "train.py"],
        capture_output=True,
        text=True,
        timeout=CAP_SECONDS,
    )

    assert (done.returncode, done.stderr.splitlines()) == (2, said)


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("analyze", "--format", "xml", "."), ("watch", "a", "b"), ("demo", "nonsense")]
)
def test_bad_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = distdiag(*arguments)

    assert done.returncode == 2
    assert "Usage: " in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_folder_is_one_line_and_a_hint(tmp_path: Path) -> None:
    done = distdiag("analyze", str(tmp_path / "nowhere"))

    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert "nowhere" in error
    assert hint.startswith("hint: ")


def test_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    logs = healthy_logs(tmp_path / "logs")

    done = distdiag("analyze", str(logs), "--output", str(tmp_path / "nowhere" / "report.txt"))

    assert done.returncode == 2
    assert done.stderr.startswith("error: No such file or directory: ")
    assert "Traceback" not in done.stderr


def test_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "distdiag", "explain"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()

    assert errors == ""


def test_healthy_run_exits_with_0_in_both_formats(tmp_path: Path) -> None:
    logs = healthy_logs(tmp_path / "logs")

    text = distdiag("analyze", str(logs))
    machine = distdiag("analyze", str(logs), "--format", "json")

    assert text.returncode == machine.returncode == 0, text.stderr
    assert text.stdout.startswith("HEALTHY  ")
    assert json.loads(machine.stdout)["verdict"]["name"] == "healthy"


def test_output_goes_into_the_file_that_is_named(tmp_path: Path) -> None:
    logs = healthy_logs(tmp_path / "logs")
    report = tmp_path / "report.json"

    done = distdiag("analyze", str(logs), "--format", "json", "--output", str(report))

    assert done.stdout == ""
    assert json.loads(report.read_text())["schema"] == "distdiag.report/1"


def test_logs_are_found_where_recording_was_told_to_put_them(tmp_path: Path) -> None:
    logs = healthy_logs(tmp_path / "logs")

    done = distdiag("analyze", DISTDIAG_DIR=str(logs))

    assert done.returncode == 0, done.stderr


def test_explain_lists_every_finding_on_a_line() -> None:
    listed = CliRunner().invoke(cli, ["explain"]).output.splitlines()

    assert [line.split()[:2] for line in listed] == sorted([each.CODE, each.NAME] for each in ANALYZERS)


@pytest.mark.parametrize("finding", ["DD301", "dd301", "rank-missing", "Rank-Missing"])
def test_explain_prints_the_manual_by_code_and_by_name(finding: str) -> None:
    shown = CliRunner().invoke(cli, ["explain", finding]).output

    assert shown.startswith("DD301 rank-missing\n")
    for section in ("What it means", "How it is found", "What to do"):
        assert f"\n{section}\n" in shown


@pytest.mark.parametrize(("typo", "meant"), [("rank-mising", "rank-missing"), ("dd31", "dd31"), ("died", "rank-died")])
def test_unknown_finding_gets_near_names(typo: str, meant: str) -> None:
    done = distdiag("explain", typo)

    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error == f"error: no finding called {typo}"
    assert meant in hint
