"""A watched job as metrics, whoever takes them: few names, and labels that are bounded."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from distdiag.live.alarms import Kind
from distdiag.live.snapshot import RankRow, Snapshot

STATES = ("runs", "waits", "stalled", "silent", "died", "ended")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """One value with its labels."""

    labels: dict[str, str]
    value: float


class Metric(NamedTuple):
    """One metric: its kind, ``gauge`` or ``counter``, and what it says."""

    name: str
    kind: str
    help: str
    samples: list[Sample]


def metrics(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the metrics of a job: labels are rank, host, group, kind of alarm and state, nothing else."""
    yield from _of_job(snapshot)
    yield from _of_ranks(snapshot.ranks)
    yield from _of_groups(snapshot.ranks)
    yield from _of_alarms(snapshot)


def _of_job(snapshot: Snapshot) -> Iterator[Metric]:
    yield _plain("distdiag_world_size", "Ranks that the job has.", snapshot.world_size)
    yield _plain("distdiag_ranks_missing", "Ranks without a log.", len(snapshot.missing))
    yield _plain("distdiag_job_step", "Step of the median rank.", snapshot.step)
    yield _plain("distdiag_steps_per_second", "Steps per second of the median rank.", snapshot.steps_per_second)
    yield _plain("distdiag_tokens_per_second", "Tokens per second of all ranks.", snapshot.tokens_per_second)
    count = snapshot.states or Counter(row.state for row in snapshot.ranks)
    states = [Sample({"state": state}, count.get(state, 0)) for state in STATES]
    yield Metric("distdiag_ranks", "gauge", "Ranks by what they do.", states)


def _of_ranks(rows: tuple[RankRow, ...]) -> Iterator[Metric]:
    def gauge(name: str, help: str, values: list[float | None], kind: str = "gauge") -> Metric:
        told = zip(rows, values, strict=True)
        samples = [Sample(_of(row), float(value)) for row, value in told if value is not None]
        return Metric(name, kind, help, samples)

    yield gauge("distdiag_step", "Step that the rank is in.", [row.step for row in rows])
    yield gauge("distdiag_steps_total", "Steps seen to end.", [row.steps for row in rows], "counter")
    yield gauge("distdiag_step_seconds", "Duration of the last step.", [row.step_seconds for row in rows])
    yield gauge("distdiag_own_seconds", "Its part outside collectives.", [row.own_seconds for row in rows])
    yield gauge("distdiag_lateness_seconds", "How much later than the first rank it came, per step.",
                [row.lateness_seconds for row in rows])  # fmt: skip
    yield gauge("distdiag_wait_suffered_ratio", "Share of the step in which it waits.", [row.suffered for row in rows])
    yield gauge("distdiag_wait_caused_ratio", "Share of all ranks' steps in which they wait for it.",
                [row.caused for row in rows])  # fmt: skip
    yield gauge("distdiag_still_seconds", "Since its last sign of progress.", [row.still_seconds for row in rows])
    yield gauge("distdiag_stall_limit_seconds", "Longest stillness that is no stall.",
                [row.limit_seconds for row in rows])  # fmt: skip
    yield gauge("distdiag_pulse_age_seconds", "Since anything came of it.", [row.pulse_seconds for row in rows])
    yield gauge("distdiag_memory_bytes", "Memory in use.", [row.memory_bytes for row in rows])
    yield gauge("distdiag_memory_limit_bytes", "Memory there is.", [row.memory_limit_bytes for row in rows])


def _of_groups(rows: tuple[RankRow, ...]) -> Iterator[Metric]:
    def counter(name: str, help: str, what: str, unit: float) -> Metric:
        samples = [
            Sample({**_of(row), "group": group}, sums[what] * unit)
            for row in rows
            for group, sums in sorted(row.spent.items())
            if what in sums
        ]
        return Metric(name, "counter", help, samples)

    yield counter("distdiag_collective_wait_seconds_total", "Time in which somebody waited for it.", "wait_ns", 1e-9)
    yield counter("distdiag_collective_seconds_total", "From issue to end, summed.", "duration_ns", 1e-9)
    yield counter("distdiag_collective_bytes_total", "Bytes of the tensors.", "bytes", 1.0)
    yield counter("distdiag_collectives_total", "Collectives and messages.", "calls", 1.0)


def _of_alarms(snapshot: Snapshot) -> Iterator[Metric]:
    active = [alarm.condition for alarm in snapshot.alarms]
    counts = [Sample({"kind": kind}, float(any(each.kind == kind for each in active))) for kind in Kind]
    yield Metric("distdiag_alarm", "gauge", "1 while there is an alarm of this kind.", counts)
    named = {(str(each.kind), str(rank)) for each in active for rank in each.ranks}
    samples = [Sample({"kind": kind, "rank": rank}, 1.0) for kind, rank in sorted(named)]
    yield Metric("distdiag_alarm_rank", "gauge", "1 for each rank that an alarm names.", samples)


def _plain(name: str, help: str, value: float | None) -> Metric:
    return Metric(name, "gauge", help, [] if value is None else [Sample({}, float(value))])


def _of(row: RankRow) -> dict[str, str]:
    return {"rank": str(row.rank), "host": row.host}


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
