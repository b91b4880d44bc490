"""``distdiag compare``: whether one run is slower than another, and where."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from distdiag.analyzers.performance.comparison import Change, Comparison

SCHEMA = "distdiag.compare/1"
MOST_SETTINGS = 12


@click.command("compare", short_help="Say whether a run is slower than another, and where.")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option(
    "--limit",
    type=click.FloatRange(min=0),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="A step that is longer by no more than this is no regression.",
)
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True)
def command(before: Path, after: Path, limit: float, form: str) -> int:
    """Say what got slower from the run in BEFORE to the run in AFTER, by how much, and how sure that is.

    Exit code: 0 not slower, 1 slower by more than the limit and by more than noise, 2 they cannot be compared.
    """
    from distdiag.analyzers.performance.comparison import compare  # pandas and duckdb: not for --help
    from distdiag.importers import load

    compared = compare(load(before), load(after))
    slower = compared.slower(limit / 100)
    if form == "json":
        told = {"schema": SCHEMA, "slower": slower, "faster": compared.faster(limit / 100), **asdict(compared)}
        json.dump(told, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _show(compared, limit / 100)
    return int(slower)


def _show(compared: "Comparison", limit: float) -> None:
    step = compared.step
    word, colour = ("SLOWER", "red") if compared.slower(limit) else ("FASTER", "green")
    if not compared.slower(limit) and not compared.faster(limit):
        word, colour = "NO CHANGE", "green"
    counts = " and ".join(f"{count}" for count in compared.steps)
    click.secho(f"{word}  ", fg=colour, bold=True, nl=False)
    click.echo(
        f"a step takes {_time(step.after)}, {step.ratio:.3f} times the {_time(step.before)} before "
        f"(95 % {step.low:.3f} to {step.high:.3f}; {counts} steps)"
    )
    if word == "NO CHANGE" and not step.sure:
        click.echo(f"{'':11}what difference there is lies within the noise of these runs")
    rows = [*compared.parts, *([compared.tokens] if compared.tokens is not None else [])]
    if rows:
        click.echo(f"\n  {'':18}{'before':>12}{'after':>12}{'ratio':>8}   95 %")
    for change in rows:
        click.echo(f"  {change.what:18}{_value(change, change.before):>12}{_value(change, change.after):>12}", nl=False)
        sure = "" if change.sure else "   within noise"
        click.echo(f"{change.ratio:8.3f}   {change.low:.3f} to {change.high:.3f}{sure}")
    if compared.settings:
        click.echo("\nWhat differs in the settings")
    for name, (first, second) in list(compared.settings.items())[:MOST_SETTINGS]:
        click.echo(f"  {name}: {first} -> {second}")
    if len(compared.settings) > MOST_SETTINGS:
        click.echo(f"  and {len(compared.settings) - MOST_SETTINGS} more: --format json has them all")


def _value(change: "Change", value: float) -> str:
    return f"{value:,.0f}" if change.what.startswith("tokens") else _time(value)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.3f} s"
