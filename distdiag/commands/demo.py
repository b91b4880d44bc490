"""``distdiag demo``: let a small real run go wrong, and analyse it."""

import importlib.util
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import click

from distdiag import events
from distdiag.commands import _job
from distdiag.commands.analyze import analyze
from distdiag.commands.scenarios import SCENARIOS, source
from distdiag.errors import DistdiagError
from distdiag.reporters import REPORTERS
from distdiag.wording import named

RANKS = 4
CAP_SECONDS = 20.0
PLAIN_INTERVAL_SECONDS = 2.0
"""How often progress is printed where lines cannot be rewritten."""
STEP_RECORD = b'{"kind":"step"'


@click.command("demo")
@click.argument("scenario", required=False, default="data-loader-stuck", type=click.Choice(tuple(SCENARIOS)))
@click.option("--logs", type=click.Path(file_okay=False, path_type=Path), help="Keep the logs there (default: /tmp).")
@click.option("--list", "listing", is_flag=True, help="List the scenarios.")
def command(scenario: str, logs: Path | None, listing: bool) -> None:
    """Let a small real run go wrong, and analyse it.

    Starts four processes that train together on this machine's CPU, with recording on. Takes about 15 seconds.
    """
    if listing:
        width = max(map(len, SCENARIOS))
        click.echo("\n".join(f"{name:{width}}  {what}" for name, what in SCENARIOS.items()))
        return
    if importlib.util.find_spec("torch") is None:
        raise DistdiagError("the demo trains a real model and needs torch", "pip install 'distdiag[torch]'")
    directory = logs or Path(tempfile.mkdtemp(prefix=f"distdiag-{scenario}-"))
    click.echo(f"{scenario}: {SCENARIOS[scenario]}\n", err=True)
    record(scenario, directory, sys.stderr)
    analyze(directory, reporter=REPORTERS["text"])
    click.echo(f"\nThe program, its output and its logs are in {directory}", err=True)


def record(scenario: str, directory: Path, progress: TextIO) -> None:
    """Run a scenario, recorded into ``directory``, and show on ``progress`` how far each rank is."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.glob("*.jsonl")):
        raise DistdiagError(f"there are logs of another run in {directory}", "give a folder of its own with --logs")
    script = directory / "train.py"
    script.write_text(source(scenario), encoding="utf-8")
    with _job.start(script, directory, ranks=RANKS) as processes:
        show = _progress(directory, progress)
        _job.wait(processes, cap_seconds=CAP_SECONDS, on_poll=show)
    if progress.isatty():
        progress.write("\n\n")


def _progress(directory: Path, out: TextIO) -> Callable[[float, list[int | None]], bool]:
    """Return what shows the progress, in a line that is rewritten or now and then a line in a file.

    It returns whether some rank has completed a step.
    """
    shown_seconds = -PLAIN_INTERVAL_SECONDS
    training = False

    def show(elapsed_seconds: float, exit_codes: list[int | None]) -> bool:
        nonlocal shown_seconds, training
        if not out.isatty() and elapsed_seconds < shown_seconds + PLAIN_INTERVAL_SECONDS and None in exit_codes:
            return training
        shown_seconds = elapsed_seconds
        alike: dict[str, list[int]] = {}
        for rank, code in enumerate(exit_codes):
            step = _last_step(directory, rank)
            training |= step is not None
            alike.setdefault(("starting" if step is None else f"step {step}") + _ending(code), []).append(rank)
        states = "   ".join(f"{named(ranks)}: {state}" for state, ranks in alike.items())
        line = f"{elapsed_seconds:5.1f} s   {states}"
        out.write(f"\r\x1b[K{line}" if out.isatty() else f"{line}\n")
        out.flush()
        return training

    return show


def _ending(code: int | None) -> str:
    if code is None:
        return ""
    return f", exit {code}" if code >= 0 else f", {signal.Signals(-code).name}"


def _last_step(directory: Path, rank: int) -> int | None:
    """Return the newest step in a rank's log; the log is being written meanwhile."""
    log = directory / f"rank{rank:05}.jsonl"
    content = log.read_bytes() if log.exists() else b""
    begin = content.rfind(STEP_RECORD)
    end = content.find(b"\n", begin)
    if begin < 0 or end < 0:
        return None
    record = events.decode(content[begin:end])
    return record.step if isinstance(record, events.Step) else None
