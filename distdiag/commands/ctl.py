"""``distdiag ctl``: ask running ranks for something, through the directory of their logs."""

import time
from collections.abc import Collection
from pathlib import Path

import click

from distdiag import events, requests
from distdiag.commands import _options
from distdiag.errors import DistdiagError
from distdiag.requests import Request

LOOK_SECONDS = 0.2


@click.command("ctl", short_help="Ask running ranks for stacks, more detail, or a search for bad numbers.")
@click.argument("logs", type=click.Path(path_type=Path), metavar="LOGS")
@click.argument("ask", type=click.Choice(("stacks", "detail", "numerics")))
@click.argument("value", required=False)
@click.option("--ranks", metavar="RANKS", help="Ask these only, as in 0-3,8.")
@click.option("--wait", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS",
              help="How long to wait for the ranks' answers.")  # fmt: skip
def command(logs: Path, ask: str, value: str | None, ranks: str | None, wait: float) -> int:
    """Ask running ranks for something without a restart, a port or a collective: they look into LOGS each second.

    \b
    distdiag ctl LOGS stacks            every rank writes its stacks now
    distdiag ctl LOGS detail up         ranks show where they are 4 times a second; down: every 5 s; normal
    distdiag ctl LOGS numerics 100      the first module with a value that is not finite, for the next 100 steps

    Exit code: 0 all ranks have done so, 1 some did not answer in time, 2 it could not be asked.
    """
    from distdiag.live.job import Job
    from distdiag.live.tailing import Follower
    from distdiag.wording import named

    request = _request(ask, value, ranks)
    follower, job = Follower(logs), Job()
    job.take(follower.look(), time.monotonic())
    running = [] if job.left else job.living
    asked = {state.rank for state in running if request.ranks is None or state.rank in request.ranks}
    if not asked:
        raise DistdiagError(f"no running rank has a log in {logs}", "is this the directory that the run writes to?")
    try:
        requests.post(logs, request)
    except OSError as error:
        raise DistdiagError(f"cannot write a request into {logs}: {error.strerror}", "ask as the job's user") from error
    waiting = set(asked)
    deadline = time.monotonic() + wait
    while waiting and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        appended = list(follower.look())
        job.take(appended, time.monotonic())
        answered = {news.writer for news in appended if any(_is_answer(each, request) for each in news.records)}
        waiting -= {rank for rank, writer in job.writers().items() if writer in answered}
    click.echo(f"{len(asked) - len(waiting)} of {len(asked)} ranks have done so{_next(request, logs, asked - waiting)}")
    if waiting:
        click.echo(
            f"no answer from {named(waiting)}: frozen, stopped or gone, or recorded by an older version", err=True
        )
    return 1 if waiting else 0


def _request(ask: str, value: str | None, ranks: str | None) -> Request:
    named = _options.chosen_ranks(ranks)
    chosen = None if named is None else list(named)
    if ask == "detail":
        if value not in ("up", "down", "normal"):
            raise click.BadParameter("say detail up, detail down or detail normal")
        return Request(ask="detail", level=value, ranks=chosen)  # type: ignore[arg-type] # checked above
    if ask == "numerics":
        if value is None or not value.isdecimal() or not int(value):
            raise click.BadParameter("say for how many steps: numerics 100")
        return Request(ask="numerics", steps=int(value), ranks=chosen)
    if value is not None:
        raise click.BadParameter(f"stacks takes no {value}")
    return Request(ask="stacks", ranks=chosen)


def _is_answer(record: events.Record, request: Request) -> bool:
    return isinstance(record, events.Decision) and record.name == requests.ANSWER and record.value == request.name


def _next(request: Request, logs: Path, answered: Collection[int]) -> str:
    return f"; look at them with: distdiag stacks {logs}" if request.ask == "stacks" and answered else ""
