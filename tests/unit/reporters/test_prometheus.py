"""Metrics of a watched job: their names and labels are what dashboards and alert rules rest on."""

import http.client
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from distdiag.commands._metrics import Metrics
from distdiag.errors import DistdiagError
from distdiag.live.alarms import Kind
from distdiag.live.snapshot import Snapshot, snapshot_of
from distdiag.reporters.metrics import metrics, render
from tests.watching import Watched

MONITORING = Path(__file__).parents[3] / "distdiag" / "monitoring"
LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+')


def stalled(directory: Path) -> Snapshot:
    watched = Watched(directory, world_size=3)
    watched.train(steps=5, facts={"tokens": 100})
    for log in watched.logs.but(2):
        log.all_reduce("train.py:10 step", pending=True)
        log.end_step(rollups={"0/all_reduce": {"calls": 2, "bytes": 64, "duration_ns": 10**9, "wait_ns": 5 * 10**8}})
    watched.look()
    watched.pass_by(9, waiting=(6,))
    return snapshot_of(watched.watch)


def test_each_line_is_one_that_prometheus_reads(tmp_path: Path) -> None:
    text = render(stalled(tmp_path))

    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) > 30
    assert [line for line in samples if not LINE.fullmatch(line)] == []


def test_metrics_tell_steps_waits_and_the_alarm_with_its_rank(tmp_path: Path) -> None:
    lines = render(stalled(tmp_path)).splitlines()

    assert 'distdiag_alarm{kind="stall"} 1.0' in lines
    assert 'distdiag_alarm{kind="death"} 0.0' in lines
    assert 'distdiag_alarm_rank{kind="stall",rank="2"} 1.0' in lines
    assert 'distdiag_steps_total{rank="0",host="node0"} 6.0' in lines
    assert 'distdiag_collective_wait_seconds_total{rank="0",host="node0",group="default_pg"} 0.5' in lines
    assert 'distdiag_ranks{state="stalled"} 3.0' in lines


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.look()

    text = render(snapshot_of(watched.watch))

    assert "distdiag_tokens_per_second" not in text
    assert "distdiag_step_seconds{" not in text


@pytest.mark.parametrize("file", ["alerts.yml", "grafana-dashboard.json"])
def test_shipped_files_name_metrics_and_alarms_that_there_are(tmp_path: Path, file: str) -> None:
    known = {metric.name for metric in metrics(stalled(tmp_path))}
    text = (MONITORING / file).read_text()

    named = set(re.findall(r"\bdistdiag_[a-z_]+", text))

    assert named
    assert named <= known
    kinds = set(re.findall(r'kind="([a-z-]+)"', text))
    assert kinds <= set(Kind)


def test_dashboard_is_json_with_a_query_in_each_panel() -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())

    assert all(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_takes_rules_and_metrics(tmp_path: Path) -> None:
    rules = subprocess.run(["promtool", "check", "rules", MONITORING / "alerts.yml"], capture_output=True, check=False)
    text = render(stalled(tmp_path)).encode()
    lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)

    assert rules.returncode == 0, rules.stderr
    assert lint.returncode == 0, lint.stderr


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_server_shows_the_newest_snapshot(tmp_path: Path) -> None:
    served = Metrics("0")
    try:
        empty = get(served.port, "/metrics")
        served.snapshot = stalled(tmp_path)
        full, lost = get(served.port, "/metrics"), get(served.port, "/elsewhere")
    finally:
        served.close()

    assert empty == (200, b"")
    assert (full[0], lost[0]) == (200, 404)
    assert b"distdiag_world_size 3.0" in full[1]


def test_port_that_is_taken_is_said() -> None:
    served = Metrics("0")
    try:
        with pytest.raises(DistdiagError, match="cannot serve metrics"):
            Metrics(str(served.port))
    finally:
        served.close()
