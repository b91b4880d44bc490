"""Metrics of a watched job for an OpenTelemetry collector: the names and attributes that Prometheus gets, too."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from distdiag.errors import DistdiagError
from distdiag.live.snapshot import Snapshot
from distdiag.reporters.metrics import Metric, metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

SCOPE = "distdiag"
PATH = "/v1/metrics"
"""Where a collector takes metrics over HTTP, unless an address says otherwise."""
EVERY_MILLISECONDS = 10_000


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
