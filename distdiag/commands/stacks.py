"""``distdiag stacks``: where all ranks are, as one tree."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from distdiag.errors import DistdiagError
from distdiag.findings import StackBranch

SCHEMA = "distdiag.stacks/1"


@click.command("stacks", short_help="Show where all ranks are, merged into one tree.")
@click.argument("logs", type=click.Path(path_type=Path), required=False, metavar="[LOGS]")
@click.option("--pid", "pids", type=int, multiple=True, metavar="PID", help="Look at this process; may be repeated.")
@click.option("--local", is_flag=True, help="Look at all training processes on this host.")
@click.option("--native", is_flag=True, help="With the frames of C and C++ (slower).")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True)
def command(logs: Path | None, pids: tuple[int, ...], local: bool, native: bool, form: str) -> int:
    """Show where all ranks are: their stacks merged into one tree, each frame with the ranks that are in it.

    LOGS is a folder of logs or of stack dumps, of which the newest stacks are shown. Without it the processes given
    with --pid are looked at, or with --local all on this host that a launcher started as ranks.
    """
    if sum((logs is not None, bool(pids), local)) != 1:
        raise click.UsageError("give a folder of logs, or --pid, or --local")
    jobs = {"": _recorded(logs)} if logs is not None else _live(pids, native=native)
    if form == "json":
        told = [{"job": job, "stacks": [asdict(branch) for branch in branches]} for job, branches in jobs.items()]
        json.dump({"schema": SCHEMA, "jobs": told}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _show(jobs)
    return 0


def _recorded(logs: Path) -> Sequence[StackBranch]:
    from distdiag.analyzers.summary.stacks import stacks_of  # pandas and duckdb: not for --help
    from distdiag.importers import load

    branches = stacks_of(load(logs))
    if not branches:
        raise DistdiagError(
            f"no stacks in {logs}",
            "recording takes them when a run stalls; look at living processes with --local or --pid",
        )
    return branches


def _live(pids: Sequence[int], *, native: bool) -> Mapping[str, Sequence[StackBranch]]:
    """Return the stacks of living processes, by the launch that they belong to."""
    from distdiag.analyzers.summary.stacks import Sample, merged
    from distdiag.commands import _processes

    looked = _processes.look(_processes.chosen(pids) if pids else _processes.ranks_here(), native=native)
    for process, reason in looked.unseen:
        click.echo(f"process {process.pid} ({process.name}): {reason}", err=True)
    samples: dict[str, list[Sample]] = {}
    for process, stacks in looked.seen:
        samples.setdefault(process.job, []).extend(
            Sample(rank=process.number, thread=stack.thread, frames=tuple(stack.frames)) for stack in stacks
        )
    return {job: merged(each) for job, each in samples.items()}


def _show(jobs: Mapping[str, Sequence[StackBranch]]) -> None:
    from distdiag.reporters._lines import Span, size_of, write_lines
    from distdiag.reporters._stacks import stack_lines

    width, _ = size_of(sys.stdout)
    for job, branches in jobs.items():
        heading = [(Span(f"Job {job or 'without a name'}", "bold"),)] if len(jobs) > 1 else []
        write_lines([*heading, *stack_lines(branches, width, most=len(branches))], sys.stdout)
