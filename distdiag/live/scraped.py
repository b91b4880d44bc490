"""A job as an existing Prometheus holds it, for whoever watches from where no log can be read."""

import http.client
import json
import statistics
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distdiag.errors import DistdiagError
from distdiag.live.alarms import Alarms, Change, Condition, Kind
from distdiag.live.snapshot import RankRow, Snapshot
from distdiag.wording import named

PREFIX = "distdiag_"
OF_RANKS = {
    "step": "step",
    "steps_total": "steps",
    "step_seconds": "step_seconds",
    "own_seconds": "own_seconds",
    "lateness_seconds": "lateness_seconds",
    "wait_suffered_ratio": "suffered",
    "wait_caused_ratio": "caused",
    "still_seconds": "still_seconds",
    "stall_limit_seconds": "limit_seconds",
    "pulse_age_seconds": "pulse_seconds",
    "memory_bytes": "memory_bytes",
    "memory_limit_bytes": "memory_limit_bytes",
}
"""Metrics with the label ``rank``, and the field of a row that each one is."""
WHOLE = frozenset({"step", "steps", "memory_bytes", "memory_limit_bytes"})
OF_JOB = ("world_size", "job_step", "steps_per_second", "tokens_per_second", "ranks", "alarm", "alarm_rank")
SILENT_SECONDS = 10.0
"""A rank of which nothing came for so long; scrapes are usually further apart than looks at logs."""
ANSWER_SECONDS = 10.0
MOST_BYTES = 256 << 20
ACCUSED = 1000.0
CLEAR_SECONDS = 15.0
"""An alarm is over when it is gone for longer than scrapes usually are apart."""


class Series(NamedTuple):
    """One value that Prometheus holds."""

    name: str
    """Without the prefix."""
    labels: Mapping[str, str]
    value: float


class Scraped:
    """What a Prometheus server says of a job; ``matchers`` select one of several, as in ``job="training"``.

    Raises ``DistdiagError`` where the server does not answer at the first look; later that is a note.
    """

    def __init__(self, address: str, matchers: str = "") -> None:
        self.logs = Path()
        self.alarms = Alarms()
        self.present = False
        self._address = address.rstrip("/")
        names = "|".join([*OF_RANKS, *OF_JOB])
        self._query = f'{{__name__=~"{PREFIX}({names})"{"," + matchers if matchers else ""}}}'
        self._series: list[Series] = []
        self._problem = ""

    @property
    def explaining(self) -> bool:
        """Return whether a verdict may still come: there are no logs."""
        return False

    @property
    def ended(self) -> bool:
        """Return whether all ranks told their end."""
        world_size = self._most("world_size") or 0.0
        return world_size > 0 and self._states().get("ended", 0) >= world_size

    def look(self, now: float | None = None) -> list[Change]:
        """Ask the server and return what became of alarms."""
        now = time.monotonic() if now is None else now
        try:
            self._series = list(series_of(_asked(self._address, self._query)))
            self.present, self._problem = True, ""
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
            self._problem = f"no answer from {self._address}: {_reason(error)}"
            if not self.present:
                raise DistdiagError(self._problem, "give the address of a Prometheus server") from error
            return []
        return self.alarms.update(self._conditions(), now, time.time_ns())

    def close(self) -> None:
        """Nothing runs in the background."""

    def snapshot(self) -> Snapshot:
        """Return what the job looks like; of what its ranks do, Prometheus knows the numbers alone."""
        accused = {rank for alarm in self.alarms.active.values() for rank in alarm.condition.ranks}
        rows = tuple(rows_of(self._series, accused))
        world_size = int(self._most("world_size") or 0)
        known = {row.rank for row in rows}
        rates = [each.value for each in self._of("steps_per_second")]
        step = self._most("job_step")
        return Snapshot(
            wall_ns=time.time_ns(),
            logs=self._address,
            health=self._health(rows, world_size),
            world_size=world_size,
            missing=tuple(rank for rank in range(world_size) if rank not in known),
            attempt=0,
            ended=self.ended,
            step=None if step is None else int(step),
            steps_per_second=statistics.median(rates) if rates else None,
            tokens_per_second=self._tokens(world_size),
            remaining_seconds=None,
            ranks=rows,
            groups=(),
            alarms=tuple(self.alarms.active.values()),
            notes=(self._problem,) if self._problem else (),
        )

    def _of(self, name: str) -> Iterator[Series]:
        return (each for each in self._series if each.name == name)

    def _most(self, name: str) -> float | None:
        return max((each.value for each in self._of(name)), default=None)

    def _states(self) -> dict[str, float]:
        """Return how many ranks are in each state, each source of metrics for itself counting some of them."""
        states: defaultdict[str, float] = defaultdict(float)
        for each in self._of("ranks"):
            states[each.labels.get("state", "")] += each.value
        return states

    def _tokens(self, world_size: int) -> float | None:
        """Return tokens per second: of a source that sees all ranks, or the sum of those that see a host each."""
        seen: defaultdict[str, set[str]] = defaultdict(set)
        for each in self._of("step"):
            seen[each.labels.get("instance", "")].add(each.labels.get("rank", ""))
        told = [(len(seen[each.labels.get("instance", "")]), each.value) for each in self._of("tokens_per_second")]
        whole = [value for ranks, value in told if ranks >= world_size]
        return whole[0] if whole else sum(value for _, value in told) if told else None

    def _conditions(self) -> Iterator[Condition]:
        ranks: defaultdict[str, set[int]] = defaultdict(set)
        for each in self._of("alarm_rank"):
            if each.value and each.labels.get("rank", "").isdecimal():
                ranks[each.labels.get("kind", "")].add(int(each.labels["rank"]))
        active = {each.labels.get("kind", "") for each in self._of("alarm") if each.value}
        for kind in Kind:
            if kind in active:
                who = f" of {named(ranks[kind])}" if ranks[kind] else ""
                yield Condition(
                    kind=kind,
                    incident=kind,
                    summary=f"alarm{who}, as Prometheus holds it; who watches the logs says more",
                    ranks=tuple(sorted(ranks[kind])),
                    clear_seconds=CLEAR_SECONDS,
                )

    def _health(self, rows: tuple[RankRow, ...], world_size: int) -> str:
        alarms = list(self.alarms.active.values())
        if alarms:
            return "; ".join(f"{each.kind.upper()} {each.condition.summary}" for each in alarms[:2])
        if not rows:
            return f"{self._address} holds no metrics of distdiag that match"
        return f"all {world_size} ranks have ended" if self.ended else "healthy"


def series_of(answer: Mapping[str, Any]) -> Iterator[Series]:
    """Yield the series of an answer of the HTTP API; raise ``ValueError`` or ``KeyError`` for what is none."""
    if answer["status"] != "success":
        raise ValueError(str(answer.get("error", "the query failed")))
    for each in answer["data"]["result"]:
        labels = each["metric"]
        yield Series(labels["__name__"].removeprefix(PREFIX), labels, float(each["value"][1]))


def rows_of(series: Iterable[Series], accused: Iterable[int]) -> Iterator[RankRow]:
    """Yield a row for each rank; of two sources that know one the fresher."""
    named_ranks = set(accused)
    found: defaultdict[tuple[int, str], dict[str, Any]] = defaultdict(dict)
    for each in series:
        field, label = OF_RANKS.get(each.name), each.labels.get("rank", "")
        if field is not None and label.isdecimal():
            values = found[int(label), each.labels.get("instance", "")]
            values[field] = int(each.value) if field in WHOLE else each.value
            values["host"] = each.labels.get("host", "")
    kept: dict[int, dict[str, Any]] = {}
    for (rank, _), values in sorted(found.items()):
        rival = kept.get(rank)
        if rival is None or values.get("pulse_seconds", 0.0) < rival.get("pulse_seconds", 0.0):
            kept[rank] = values
    for rank, values in sorted(kept.items()):
        yield _row(rank, values, rank in named_ranks)


def _row(rank: int, values: dict[str, Any], accused: bool) -> RankRow:
    still, limit = values.get("still_seconds", 0.0), values.get("limit_seconds", 0.0)
    silent = values.get("pulse_seconds", 0.0) > SILENT_SECONDS
    state = "silent" if silent else "stalled" if limit and still > limit else "runs"
    return RankRow(
        rank=rank,
        host=values["host"],
        pid=0,
        state=state,
        step=values.get("step", 0),
        phase="",
        doing="-",
        where=None,
        still_seconds=still,
        limit_seconds=limit,
        pulse_seconds=values.get("pulse_seconds", 0.0),
        step_seconds=values.get("step_seconds"),
        own_seconds=values.get("own_seconds"),
        lateness_seconds=values.get("lateness_seconds"),
        suffered=values.get("suffered"),
        caused=values.get("caused"),
        memory_bytes=values.get("memory_bytes"),
        memory_limit_bytes=values.get("memory_limit_bytes"),
        steps=values.get("steps", 0),
        trouble=(values.get("caused") or 0.0) + (still / limit if limit else 0.0) + ACCUSED * accused,
    )


def _asked(address: str, query: str) -> Any:
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("it is no http address")
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return json.loads(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            raise ValueError(f"{error.code} {error.read(200).decode(errors='replace')}") from error


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason if reason is not None else error) or type(error).__name__
