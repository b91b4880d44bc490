"""Options that several commands share, declared once."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from distdiag import events
from distdiag.reporters import REPORTERS

Command = TypeVar("Command", bound=Callable[..., object])

DEFAULT_DIRECTORY = "distdiag_logs"
EMBEDDED = "duckdb"
SPARK = "spark"


def logs_argument(function: Command) -> Command:
    """Add the folder of logs that a command reads; without it, where recording writes by default."""
    return click.argument(
        "logs", type=click.Path(path_type=Path), envvar="DISTDIAG_DIR", default=DEFAULT_DIRECTORY, metavar="[LOGS]"
    )(function)


def several_logs_argument(function: Command) -> Command:
    """Add the folders or files, one or more, that a command reads as one run."""
    return click.argument(
        "logs",
        type=click.Path(path_type=Path),
        nargs=-1,
        envvar="DISTDIAG_DIR",
        default=(DEFAULT_DIRECTORY,),
        metavar="[LOGS]...",
    )(function)


def chosen_ranks(text: str | None) -> tuple[int, ...] | None:
    """Return the ranks that an option names as ``0-7,12``; None where it was not given."""
    if text is None:
        return None
    try:
        return events.unfolded(text)
    except ValueError as error:
        raise click.BadParameter(f"{text} are no ranks; write them as 0-3,8") from error


def _engine(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value in (EMBEDDED, SPARK, "yarn") or value.startswith("local") or "://" in value:
        return value
    raise click.BadParameter(f"{value!r} is none of duckdb, spark, yarn and masters like spark://host:7077")


def engine_option(function: Command) -> Command:
    """Add where passes over whole logs run."""
    return click.option(
        "--engine",
        default=EMBEDDED,
        show_default=True,
        metavar="ENGINE",
        callback=_engine,
        help="Where whole logs are read: duckdb, here; spark, on all processors of this machine; or a master of a "
        "cluster, spark://host:7077, and LOGS may then be s3://bucket/logs and the like.",
    )(function)


def report_options(function: Command) -> Command:
    """Add the form of a report and where it goes."""
    function = click.option(
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the report there instead of to the terminal; a page goes to distdiag_report.html by default.",
    )(function)
    return click.option(
        "--format",
        "form",
        type=click.Choice(tuple(REPORTERS)),
        default="text",
        show_default=True,
        help="text for people, html for a browser, json (distdiag.report/1) for machines.",
    )(function)
