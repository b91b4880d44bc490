"""Metrics for OpenTelemetry: what Prometheus is told, under the same names."""

import http.server
import threading
from pathlib import Path
from typing import Any

import pytest

from distdiag.errors import DistdiagError
from distdiag.live.snapshot import Snapshot, snapshot_of
from distdiag.reporters.metrics import metrics
from tests.watching import Watched

CAP_SECONDS = 20.0


def stalled(tmp_path: Path) -> Snapshot:
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=10, facts={"tokens": 100})
    for log in watched.logs.but(1):
        log.all_reduce("train.py:10 step", pending=True)
    watched.beat(12)
    watched.look_twice()
    return snapshot_of(watched.watch)


def test_collector_gets_the_metrics_that_prometheus_gets(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from distdiag.commands._metrics import OpenTelemetry

    snapshot, reader = stalled(tmp_path), InMemoryMetricReader()
    exporter = OpenTelemetry(reader)

    exporter.snapshot = snapshot
    data: Any = reader.get_metrics_data()

    exporter.close()
    told = {
        metric.name: {(tuple(sorted(point.attributes.items())), point.value) for point in metric.data.data_points}
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
    }
    wanted = {
        metric.name: {(tuple(sorted(sample.labels.items())), sample.value) for sample in metric.samples}
        for metric in metrics(snapshot)
        if metric.samples
    }
    assert told == wanted
    assert ((("kind", "stall"), ("rank", "1")), 1.0) in told["distdiag_alarm_rank"]


def test_newest_snapshot_is_exported_over_http_when_it_ends(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from distdiag.commands._metrics import OpenTelemetry

    came: list[tuple[str, bytes]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        exporter = OpenTelemetry.to(f"http://127.0.0.1:{server.server_address[1]}")
        exporter.snapshot = stalled(tmp_path)
        exporter.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(CAP_SECONDS)

    assert [path for path, _ in came] == ["/v1/metrics"]
    assert b"distdiag_alarm_rank" in came[0][1]


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from distdiag.commands._metrics import OpenTelemetry

    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.metrics.export", None)
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)

    with pytest.raises(DistdiagError) as raised:
        OpenTelemetry.to("http://localhost:4318")

    assert raised.value.hint == "pip install 'distdiag[otel]'"
