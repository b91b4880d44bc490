"""``distdiag analyze``: one verdict for a folder of logs."""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distdiag.allocation import reuse_freed, without_collecting
from distdiag.commands import _options
from distdiag.errors import DistdiagError
from distdiag.reporters import DRAWING, REPORTERS, Reporter

if TYPE_CHECKING:
    from distdiag.findings import Report
    from distdiag.importers import SeveralRunsError
    from distdiag.reporters.runs import Surveyed
    from distdiag.run import Run


MOST_RUNS = 20
"""Analysed for one survey, the newest: nobody reads more verdicts at once, and each takes a second."""
CANNOT = 2
HEALTHY = "healthy"


def survey(several: "SeveralRunsError") -> int:
    """Analyse each run and write a verdict each; return 0 if all are healthy, 2 if none could be read, else 1."""
    from distdiag.reporters import runs
    from distdiag.reporters._lines import size_of, write_lines

    looked = list(_looked(several))
    width, _ = size_of(sys.stdout)
    write_lines(runs.compose(several.where, looked, total=len(several.runs), width=width), sys.stdout)
    return code_of(looked)


def code_of(looked: "Sequence[Surveyed]") -> int:
    """Return the exit code of a survey."""
    names = {run.verdict.name for run in looked if run.verdict is not None}
    if not names:
        return CANNOT
    return 0 if names == {HEALTHY} and all(run.verdict is not None for run in looked) else 1


def _looked(several: "SeveralRunsError") -> "Iterator[Surveyed]":
    from distdiag.analyzers import diagnose
    from distdiag.importers import load
    from distdiag.reporters.runs import Surveyed

    for run in several.runs[:MOST_RUNS]:
        try:
            yield Surveyed(folders=run.folders, verdict=diagnose(load(*run.folders)).verdict)
        except DistdiagError as error:
            yield Surveyed(folders=run.folders, verdict=None, refusal=error.message)


PAGE = Path("distdiag_report.html")
"""Nobody wants a page of megabytes in a terminal."""


@click.command("analyze", short_help="Say what went wrong in a run, and what to do.")
@_options.several_logs_argument
@_options.engine_option
@_options.report_options
def command(logs: tuple[Path, ...], form: str, output: Path | None, engine: str) -> int:
    """Say what went wrong in a run: what happened first, on which rank, and what to do.

    LOGS is the folder that the run wrote (default: $DISTDIAG_DIR or distdiag_logs). Several folders or files, archives
    too, are read as one run, as where each host wrote its own. Of a folder of several runs each gets its verdict in a
    line.

    Exit code: 0 healthy, 1 any other verdict, also of one of several runs, 2 the logs cannot be analysed.
    """
    if form in DRAWING and output is None and sys.stdout.isatty():
        output = PAGE
        click.echo(f"the page is in {output}")
    try:
        return analyze(*logs, reporter=REPORTERS[form], output=output, pictured=form in DRAWING, engine=engine)
    except DistdiagError as error:
        from distdiag.importers import SeveralRunsError

        if not isinstance(error, SeveralRunsError) or REPORTERS[form] is not REPORTERS["text"] or output is not None:
            raise
        return survey(error)


def analyze(
    *logs: Path,
    reporter: Reporter,
    output: Path | None = None,
    pictured: bool = False,
    engine: str = _options.EMBEDDED,
) -> int:
    """Analyse ``logs``, render the report and return the exit code that says whether the run was healthy."""
    reuse_freed()
    with without_collecting():
        loading = _begin(logs, engine)
        from distdiag.analyzers import diagnose  # takes long, also because of pandas: other processors read meanwhile

        run = loading()
    report = diagnose(run)
    if pictured:
        report = _with_pictures(run, report)
    if output is None:
        reporter.render(report, sys.stdout)
    else:
        with output.open("w", encoding="utf-8") as out:
            reporter.render(report, out)
    return 0 if report.verdict.name == HEALTHY else 1


def _begin(logs: Sequence[Path], engine: str) -> Callable[[], "Run"]:
    """Begin to read logs, and return what returns them."""
    from distdiag import importers, remote

    uri = next((uri for path in logs if (uri := remote.uri_of(path)) is not None), None)
    if engine != _options.EMBEDDED:
        return functools.partial(_on_spark, logs, uri, engine)
    if uri is not None:
        raise DistdiagError(f"{uri} does not lie on this machine", "read it with --engine spark, or copy it here")
    return importers.begin(*logs)


def _on_spark(logs: Sequence[Path], uri: str | None, engine: str) -> "Run":
    from distdiag import importers, remote
    from distdiag.engine import spark

    if uri is not None and len(logs) > 1:
        raise DistdiagError(f"{uri} cannot be read together with other folders", "name one folder")
    session = spark.session_of(spark.LOCAL if engine == _options.SPARK else engine)
    if uri is not None:
        return remote.load(uri, session)
    run = importers.load(*logs, written=True)  # executors read files
    return dataclasses.replace(run, engine=spark.SparkEngine(session, run.engine))


def _with_pictures(run: "Run", report: "Report") -> "Report":
    from distdiag.analyzers import ANALYZERS
    from distdiag.analyzers.summary.pictures import pictures_of

    found = {finding.code for finding in report.findings}
    manuals = {each.CODE: inspect.getdoc(each) or "" for each in ANALYZERS if each.CODE in found}
    drawn = dataclasses.replace(pictures_of(run, report.verdict), manuals=manuals)
    return dataclasses.replace(report, pictures=drawn)
