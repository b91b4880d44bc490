"""``distdiag replay-info``: what it takes to run one step again."""

import dataclasses
import json
import sys
from pathlib import Path

import click

from distdiag.commands import _options
from distdiag.errors import DistdiagError
from distdiag.wording import named

SCHEMA = "distdiag.replay/1"


@click.command("replay-info", short_help="Show what it takes to run one step again.")
@click.argument("step", type=click.IntRange(min=0), metavar="STEP")
@_options.logs_argument
@click.option("--rank", "ranks", type=int, multiple=True, metavar="RANK", help="Show this rank; may be repeated.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True)
def command(step: int, logs: Path, ranks: tuple[int, ...], form: str) -> int:
    """Show what it takes to run one step again: seeds, states of generators, samplers and the ids of samples.

    Ids and digests are all that was recorded, never the content of samples.
    """
    from distdiag.analyzers.training.replay import replay_of  # pandas and duckdb: not for --help
    from distdiag.importers import load
    from distdiag.reporters._lines import write_lines
    from distdiag.reporters._replay import replay_lines

    run = load(logs)
    replay = replay_of(run, step)
    if not replay.ranks:
        steps = run.steps["step"]
        hint = f"steps {steps.min()} to {steps.max()} are" if len(steps) else "no step is"
        raise DistdiagError(f"nothing is known of step {step} in {logs}", f"{hint} recorded there")
    if ranks:
        replay = dataclasses.replace(replay, ranks=tuple(each for each in replay.ranks if each.rank in ranks))
    if not replay.ranks:
        raise DistdiagError(f"nothing is known of step {step} on {named(ranks)}", "leave --rank out to see who is")
    told = {"schema": SCHEMA, **dataclasses.asdict(replay)}
    if form == "json":
        json.dump(told, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        write_lines(replay_lines(told), sys.stdout)
    return 0
