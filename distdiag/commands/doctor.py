"""``distdiag doctor``: whether this machine lets a job be recorded and diagnosed."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from distdiag.commands import _options
from distdiag.doctor import BAD, NOTE, Check, examine

SCHEMA = "distdiag.doctor/1"
STYLES = {"good": ("ok", "green"), "note": ("note", "yellow"), "bad": ("BAD", "red")}


@click.command("doctor", short_help="Say whether this machine lets a job be recorded.")
@_options.logs_argument
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True)
def command(logs: Path, form: str) -> int:
    """Say whether this machine lets a job be recorded and diagnosed, and what to change if not.

    LOGS is the folder where the logs shall go. Run it where the job runs: in its container, on its node.

    Exit code: 0 nothing hinders, 1 something does.
    """
    checks = examine(logs.absolute())
    if form == "json":
        json.dump({"schema": SCHEMA, "checks": [asdict(check) for check in checks]}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _show(checks)
    return int(any(check.state == BAD for check in checks))


def _show(checks: Sequence[Check]) -> None:
    bad, notes = (sum(check.state == state for check in checks) for state in (BAD, NOTE))
    click.secho(_summary(bad, notes) + "\n", bold=True)
    for check in checks:
        word, colour = STYLES[check.state]
        told = check.told if check.told.startswith(check.subject) else f"{check.subject}: {check.told}"
        click.echo(f"  {click.style(f'{word:4}', fg=colour)}  {told}")
        if check.hint:
            click.echo(f"        {check.hint}")


def _summary(bad: int, notes: int) -> str:
    if bad:
        return f"{bad} thing{'s' * (bad != 1)} would keep a job on this machine from being recorded."
    return "Jobs on this machine can be recorded" + (f"; {notes} thing{'s' * (notes != 1)} to know." if notes else ".")
