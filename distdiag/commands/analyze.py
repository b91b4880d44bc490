"""``distdiag analyze``: one verdict for a folder of logs."""

import sys
from pathlib import Path

import click

from distdiag.commands import _options
from distdiag.reporters import REPORTERS, Reporter

HEALTHY = "healthy"


@click.command("analyze", short_help="Say what went wrong in a run, and what to do.")
@_options.logs_argument
@_options.report_options
def command(logs: Path, form: str, output: Path | None) -> int:
    """Say what went wrong in a run: what happened first, on which rank, and what to do.

    LOGS is the folder that the run wrote (default: $DISTDIAG_DIR or distdiag_logs).

    Exit code: 0 healthy, 1 any other verdict, 2 the logs cannot be analysed.
    """
    return analyze(logs, REPORTERS[form], output)


def analyze(logs: Path, reporter: Reporter, output: Path | None = None) -> int:
    """Analyse ``logs``, render the report and return the exit code that says whether the run was healthy."""
    from distdiag.analyzers import diagnose  # pandas and duckdb: not for --help
    from distdiag.importers import load

    report = diagnose(load(logs))
    if output is None:
        reporter.render(report, sys.stdout)
    else:
        with output.open("w", encoding="utf-8") as out:
            reporter.render(report, out)
    return 0 if report.verdict.name == HEALTHY else 1
