"""A watched job's metrics in Prometheus's text format, version 0.0.4."""

from distdiag.live.snapshot import Snapshot
from distdiag.reporters.metrics import metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(snapshot: Snapshot) -> str:
    """Return all metrics of a job; those that its logs do not tell are left out."""
    lines: list[str] = []
    for metric in metrics(snapshot):
        if metric.samples:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{_labels(sample.labels)} {float(sample.value)!r}" for sample in metric.samples]
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    told = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(told) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
