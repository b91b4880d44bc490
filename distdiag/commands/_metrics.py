"""Hands the metrics of a watched job out: to whoever scrapes them, and to an OpenTelemetry collector."""

import http.server
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from distdiag.errors import DistdiagError
from distdiag.live.snapshot import Snapshot
from distdiag.reporters.metrics import CONTENT_TYPE, Metric, metrics, render

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

SCOPE = "distdiag"
PATH = "/v1/metrics"
"""Where a collector takes metrics over HTTP, unless an address says otherwise."""
EVERY_MILLISECONDS = 10_000
LOOPBACK = "127.0.0.1"


class OpenTelemetry:
    """Hands the newest snapshot to a reader of OpenTelemetry's, which exports it when it wants to."""

    def __init__(self, reader: "MetricReader") -> None:
        from opentelemetry.sdk.metrics import MeterProvider

        self._provider = MeterProvider([reader])
        self._newest: dict[str, Metric] = {}
        self._snapshot: Snapshot | None = None

    @classmethod
    def to(cls, address: str) -> Self:
        """Export to a collector, as in ``http://localhost:4318``; raise ``DistdiagError`` without the extra."""
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        except ImportError as error:
            raise DistdiagError("OpenTelemetry is not installed", "pip install 'distdiag[otel]'") from error
        scheme, _, rest = address.partition("://")
        if scheme not in ("http", "https") or not rest:
            raise DistdiagError(f"{address} is no http address", "give a collector's, as in http://localhost:4318")
        endpoint = address if "/" in rest.rstrip("/") else address.rstrip("/") + PATH
        exporter = OTLPMetricExporter(endpoint=endpoint)
        return cls(PeriodicExportingMetricReader(exporter, export_interval_millis=EVERY_MILLISECONDS))

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot."""
        return self._snapshot

    @snapshot.setter
    def snapshot(self, snapshot: Snapshot | None) -> None:
        if snapshot is None:
            return
        first = self._snapshot is None
        self._snapshot = snapshot
        self._newest = {metric.name: metric for metric in metrics(snapshot)}
        if first:
            self._make_instruments()

    def close(self) -> None:
        """Export what is newest, and no more."""
        self._provider.shutdown()

    def _make_instruments(self) -> None:
        meter = self._provider.get_meter(SCOPE)
        for metric in self._newest.values():
            make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            make(metric.name, callbacks=[self._observing(metric.name)], description=metric.help)

    def _observing(self, name: str) -> Callable[[Any], Iterable[Any]]:
        from opentelemetry.metrics import Observation

        return lambda options: [Observation(each.value, each.labels) for each in self._newest[name].samples]


class Metrics:
    """An HTTP server with one page, ``/metrics``, that shows the newest snapshot.

    ``address`` is a port of the loopback, or ``host:port``. Raises ``DistdiagError`` where it cannot be had.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.snapshot: Snapshot | None = None
        try:
            self._server = http.server.ThreadingHTTPServer((host or LOOPBACK, int(port)), self._handler())
        except (OSError, ValueError, OverflowError) as error:
            raise DistdiagError(
                f"cannot serve metrics at {address}: {error}", "give a free port, as in 9464"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="distdiag-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Return the port that is served."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Serve no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _page(self) -> bytes:
        return render(self.snapshot).encode() if self.snapshot is not None else b""

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        page = self._page

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path.partition("?")[0] in ("/metrics", "/")
                body = page() if known else b"the metrics are at /metrics\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", CONTENT_TYPE if known else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Leave the terminal to the view."""

        return Handler
