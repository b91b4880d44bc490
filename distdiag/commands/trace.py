"""``distdiag trace``: a run as a file for Perfetto."""

import contextlib
import gzip
import re
from pathlib import Path
from typing import IO, cast

import click

from distdiag.commands import _options
from distdiag.errors import DistdiagError

RANGE = re.compile(r"(\d*):(\d*)")


@click.command("trace", short_help="Write a run as a trace that Perfetto opens.")
@_options.logs_argument
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), default="trace.json.gz", metavar="FILE"
)
@click.option("--steps", metavar="FIRST:LAST", help="Only these steps, both included; either may be left out.")
@click.option("--ranks", metavar="RANKS", help="Only these ranks: 0-7,12.")
def command(logs: Path, output: Path, steps: str | None, ranks: str | None) -> int:
    """Write a run as a Chrome trace: all ranks on one clock, groups as tracks, the members of a collective joined.

    Open it at ui.perfetto.dev or in chrome://tracing. FILE may end in .json or .json.gz.
    """
    first, last = _steps(steps)
    chosen = _options.chosen_ranks(ranks)
    wanted = None if chosen is None else frozenset(chosen)

    from distdiag.analyzers import diagnose  # pandas and duckdb: not for --help
    from distdiag.importers import load
    from distdiag.reporters import timeline
    from distdiag.wording import fold

    run = load(logs)
    absent = (wanted or frozenset()) - set(run.ranks)
    if absent:
        raise DistdiagError(f"no log of rank {fold(absent)} in {logs}", f"there are ranks {fold(run.ranks)}")
    selection = timeline.Selection(first_step=first, last_step=last, ranks=wanted)
    with contextlib.ExitStack() as files:
        out: IO[bytes] = files.enter_context(output.open("wb"))
        if output.suffix == ".gz":
            out = cast("IO[bytes]", files.enter_context(gzip.GzipFile(fileobj=out, mode="wb", compresslevel=5)))
        drawn = timeline.render(run, diagnose(run), selection, out)
    if not drawn.calls:
        click.echo("note: no call lies in that selection", err=True)
    if drawn.left_out:
        click.echo(
            f"note: {drawn.left_out:,} calls before step {drawn.first_step} are left out, no browser would open them; "
            "choose others with --steps and --ranks",
            err=True,
        )
    elif run.quality.window_bytes is not None:
        click.echo("note: the logs are long, only their newest part was read", err=True)
    spread = f", steps {drawn.first_step} to {drawn.last_step}" if drawn.first_step is not None else ""
    click.echo(f"{output}: {drawn.calls:,} calls{spread}; open it at https://ui.perfetto.dev")
    return 0


def _steps(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    if text.isdigit():
        return int(text), int(text)
    match = RANGE.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--steps is FIRST:LAST, like 40:60 or 40:, not {text!r}")
    first, last = (int(each) if each else None for each in match.groups())
    if first is not None and last is not None and first > last:
        raise click.UsageError(f"--steps {text} ends before it begins")
    return first, last
