"""``distdiag agent``: the ranks of this host as one small file a second, for whoever watches a large job."""

import errno
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distdiag.commands import _options
from distdiag.errors import DistdiagError

if TYPE_CHECKING:
    from distdiag.live.nodes import NodeSummary


@click.command("agent", short_help="Sum up the ranks of this host, for watching a job of many hosts.")
@_options.logs_argument
@click.option("--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, metavar="SECONDS")
@click.option(
    "--host", metavar="NAME", help="Take the ranks that were recorded on this host, not on the one it runs on."
)
@click.option("--prometheus", metavar="[HOST:]PORT", help="Serve metrics of these ranks as well.")
@click.option("--otel", metavar="URL", help="Send the same metrics to an OpenTelemetry collector.")
@click.option("--until-end", is_flag=True, help="Leave when all ranks of this host have ended.")
def command(
    logs: Path, interval: float, host: str | None, prometheus: str | None, otel: str | None, until_end: bool
) -> int:
    """Read the logs of this host's ranks and write what matters of them into LOGS, once a second.

    Run one on each host; `distdiag watch LOGS --agents` then reads one small file for each host instead of one log
    for each rank.
    """
    from distdiag.commands._metrics import Metrics, OpenTelemetry
    from distdiag.live.nodes import NodeAgent
    from distdiag.live.snapshot import snapshot_of

    agent = NodeAgent(logs, host or socket.gethostname())
    exporters: list[Metrics | OpenTelemetry] = [Metrics(prometheus)] if prometheus else []
    exporters += [OpenTelemetry.to(otel)] if otel else []
    try:
        while True:
            began = time.monotonic()
            summary = agent.look(began, time.time_ns())
            if summary is not None:
                _publish(logs, summary)
            for exporter in exporters:
                exporter.snapshot = snapshot_of(agent.watch)
            if until_end and summary is not None and not summary.living:
                return 0
            time.sleep(max(interval - (time.monotonic() - began), 0.0))
    except KeyboardInterrupt:
        return 0
    finally:
        for exporter in exporters:
            exporter.close()


def _publish(logs: Path, summary: "NodeSummary") -> None:
    from distdiag.live.nodes import publish

    try:
        publish(logs, summary)
    except OSError as error:
        if error.errno != errno.ENOSPC:  # room may come again
            raise DistdiagError(f"cannot write into {logs}: {error.strerror}", "check its permissions") from error
