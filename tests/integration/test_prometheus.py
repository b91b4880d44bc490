"""A real Prometheus server scrapes a watched job, and its alert rule fires for a stalled rank."""

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_watch import CAP_SECONDS, STUCK, command, environment, running
from tests.ranks import ROOT, free_port

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs a Prometheus server")

CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: training
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@contextlib.contextmanager
def process(*arguments: str | Path, **options: Any) -> Iterator[None]:
    started = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        yield
    finally:
        started.kill()
        started.wait()


@contextlib.contextmanager
def scraping(directory: Path, exporter: int) -> Iterator[int]:
    """Run a server that scrapes a port of the loopback; give its own port."""
    port = free_port()
    configuration = directory / "prometheus.yml"
    rules = ROOT / "distdiag" / "monitoring" / "alerts.yml"
    configuration.write_text(CONFIGURATION.format(rules=rules, port=exporter))
    data, address = directory / "data", f"--web.listen-address=127.0.0.1:{port}"
    with process("prometheus", f"--config.file={configuration}", f"--storage.tsdb.path={data}", address):
        yield port


def asked(port: int, path: str) -> Any:
    """Return what the server answers, None while it does not."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=5) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def test_alert_fires_for_a_stalled_job_and_a_watch_shows_what_the_server_holds(tmp_path: Path) -> None:
    exporter = free_port()
    watching = command(tmp_path / "logs", "--format", "json", "--no-verdict", "--prometheus", str(exporter))

    with (
        running(STUCK, tmp_path, world_size=2),
        process(*watching, env={**os.environ, **environment(tmp_path)}),
        scraping(tmp_path, exporter) as server,
    ):
        deadline = time.monotonic() + CAP_SECONDS
        fired: list[str] = []
        while "TrainingStalled" not in fired:
            assert time.monotonic() < deadline, fired
            time.sleep(0.5)
            alerts = (asked(server, "alerts") or {"alerts": []})["alerts"]
            fired = [alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"]
        named = asked(server, "query?query=distdiag_alarm_rank")["result"]
        steps = asked(server, "query?query=distdiag_step")["result"]
        held = subprocess.run(
            [*command("--prometheus-url", f"http://127.0.0.1:{server}", "--once", "--format", "json")],
            stdout=subprocess.PIPE,
            env=environment(tmp_path / "elsewhere"),
            timeout=CAP_SECONDS,
            check=False,
        )

    state = json.loads(held.stdout)
    assert held.returncode == 1
    assert [(row["rank"], row["state"], row["step"]) for row in state["ranks"]] == [
        (0, "stalled", 3),
        (1, "stalled", 3),
    ]
    assert [(alarm["kind"], alarm["ranks"]) for alarm in state["alarms"]] == [("stall", [1])]
    assert [result["metric"]["rank"] for result in named] == ["1"]
    assert {result["metric"]["rank"] for result in steps} == {"0", "1"}
