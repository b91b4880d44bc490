"""``distdiag watch``: a running job on one screen, and alarms."""

import shlex
import sys
from pathlib import Path

import click

from distdiag.commands import _options
from distdiag.errors import DistdiagError
from distdiag.journal.segments import place_of, rank_of

MOST_FOLDERS = 1000
"""Looked into, one level down."""
MOST_NAMED = 3


def objection(logs: Path) -> DistdiagError | None:
    """Return why nothing will be seen in ``logs``, as far as what lies there now tells; None where something may."""
    if logs.is_file():
        return DistdiagError(
            f"{logs} is a file: what is watched is the folder that a job records into",
            f"analyse the file: distdiag analyze {shlex.quote(str(logs))}",
        )
    try:
        inside = sorted(logs.iterdir()) if logs.is_dir() else []
        if any(place_of(path.name) is not None for path in inside):
            return None
        folders = [path for path in inside[:MOST_FOLDERS] if path.is_dir() and _has_logs(path)]
        newest = max(folders, key=lambda folder: (folder.stat().st_mtime_ns, folder.name), default=logs)
    except OSError:
        return None  # whoever looks tells what is wrong
    if folders:
        names = ", ".join(map(str, folders[:MOST_NAMED])) + (", …" if len(folders) > MOST_NAMED else "")
        return DistdiagError(
            f"no logs in {logs} itself, but in {len(folders)} of its folders: {names}",
            f"watch one of them: distdiag watch {shlex.quote(str(newest))}",
        )
    files = [path.name for path in inside if path.is_file()]
    if files:
        return DistdiagError(
            f"nothing in {logs} is a log that recording writes: {', '.join(files[:MOST_NAMED])}"
            + (" …" if len(files) > MOST_NAMED else ""),
            f"what a job prints, and dumps, are analysed: distdiag analyze {shlex.quote(str(logs))}",
        )
    return None


def _has_logs(folder: Path) -> bool:
    places = (place_of(path.name) for path in folder.iterdir())
    return any(place is not None and rank_of(place[0]) is not None for place in places)


KINDS = ("stall", "death", "divergence", "non-finite", "replica-desync", "straggler", "memory", "checkpoint")


def _kinds(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    kinds = tuple(part.strip() for part in (value or "").split(",") if part.strip())
    for kind in kinds:
        if kind not in KINDS:
            raise click.BadParameter(f"{kind} is no kind of alarm; there are {', '.join(KINDS)}", context, parameter)
    return kinds


@click.command("watch", short_help="Watch a running job, and be told when it goes wrong.")
@_options.logs_argument
@click.option("--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, metavar="SECONDS")
@click.option("--once", is_flag=True, help="Show the job as it is now and leave: exit code 1 if there is an alarm.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="json writes one line (distdiag.watch/1) for each interval and for each change of an alarm.",
)
@click.option(
    "--exit-on", callback=_kinds, metavar="KINDS", help=f"Leave with code 1 at such alarms: {', '.join(KINDS)}."
)
@click.option(
    "--on-alarm", metavar="COMMAND", help="Run it for each alarm: facts in DISTDIAG_ALARM…, JSON on its input."
)
@click.option("--webhook", metavar="URL", help="Post each alarm there, as JSON.")
@click.option(
    "--prometheus", metavar="[HOST:]PORT", help="Serve metrics there, on the loopback unless a host is given."
)
@click.option(
    "--otel", metavar="URL", help="Send the same metrics to an OpenTelemetry collector (needs distdiag[otel])."
)
@click.option(
    "--prometheus-url", metavar="URL", help="Show what this Prometheus server holds of a job, not what its logs say."
)
@click.option("--prometheus-match", default="", metavar="LABELS", help='Select one of several jobs: job="training".')
@click.option("--agents", is_flag=True, help="Read what `distdiag agent` on each host says, not the logs of all ranks.")
@click.option("--no-verdict", is_flag=True, help="Do not analyse the logs when an alarm is raised.")
def command(
    logs: Path,
    interval: float,
    once: bool,
    form: str,
    exit_on: tuple[str, ...],
    on_alarm: str | None,
    webhook: str | None,
    prometheus: str | None,
    otel: str | None,
    prometheus_url: str | None,
    prometheus_match: str,
    agents: bool,
    no_verdict: bool,
) -> int:
    """Watch a running job through its logs: ranks, groups, who makes the others wait, and alarms.

    LOGS is the folder that the run writes (default: $DISTDIAG_DIR or distdiag_logs); it may appear later. A job
    is stalled when no rank made progress within the limit that recording has in force, as the logs say it.

    Exit code: 0 the job ended or you left, 1 an alarm of --exit-on (with --once: any alarm), 2 it cannot be watched.
    """
    from distdiag.commands import _following
    from distdiag.commands._metrics import Metrics, OpenTelemetry
    from distdiag.commands._notices import Notices
    from distdiag.commands.watch import objection

    wrong = None if prometheus_url or agents else objection(logs)
    if wrong is not None and (once or logs.is_file()):
        raise wrong
    if wrong is not None:  # a job may yet begin to record there
        click.echo(f"distdiag: {wrong.message}; {wrong.hint}", err=True)
    notices = Notices(logs=prometheus_url or str(logs), command=on_alarm, webhook=webhook)
    if prometheus_url:
        session = _following.of_prometheus(prometheus_url, prometheus_match, notices)
    else:
        begin = _following.of_agents if agents else _following.of_logs
        session = begin(logs, notices, explain=not no_verdict)
    session.interval_seconds, session.exit_on = interval, exit_on
    session.exporters += [Metrics(prometheus)] if prometheus else []
    session.exporters += [OpenTelemetry.to(otel)] if otel else []
    try:
        if once:
            return _following.once(session, form)
        if form == "text" and sys.stdout.isatty():
            return _following.interact(session)
        return _following.stream(session, form)
    except KeyboardInterrupt:
        return 0 if sys.stdout.isatty() else 130
    finally:
        session.close()
