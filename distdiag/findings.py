"""What analysis returns: findings, the verdict chosen from them, and the report that holds both."""

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = "distdiag.report/1"


class Severity(enum.StrEnum):
    """How grave a finding is; a verdict is the first finding of at least ``WARNING``."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Confidence(enum.StrEnum):
    """How sure a finding is; the reasons stand in its evidence."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem: a sentence with subject, measurement and comparison, and what it rests on."""

    code: str
    name: str
    severity: Severity
    summary: str
    culprits: tuple[int, ...] = ()
    """Ranks whose behaviour is the origin; empty when it is a tie or nobody's fault."""
    victims: tuple[int, ...] = ()
    """Ranks that only wait."""
    group: str | None = None
    seq: int | None = None
    op: str | None = None
    step: int | None = None
    site: str | None = None
    """``file:line`` of the culprit's first divergent act, at the fork line of its path."""
    sites: Mapping[int, str] = field(default_factory=dict)
    """``file:line`` where each rank was."""
    cause: str | None = None
    confidence: Confidence = Confidence.HIGH
    evidence: tuple[str, ...] = ()
    action: tuple[str, ...] = ()
    """What somebody can do now, imperative, most useful first."""
    lost_share: float | None = None
    """Of the job's time, what it costs; None where that is not measured, or not what it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The gravest finding, or ``healthy``; fields as in ``Finding``."""

    name: str
    summary: str
    code: str | None = None
    culprits: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    group: str | None = None
    seq: int | None = None
    op: str | None = None
    step: int | None = None
    site: str | None = None
    sites: Mapping[int, str] = field(default_factory=dict)
    cause: str | None = None
    confidence: Confidence = Confidence.HIGH
    evidence: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The last thing known of one rank."""

    rank: int
    step: int | None
    phase: str | None
    where: str | None
    """``file:line function`` of the deepest user frame."""
    doing: str
    """``all_reduce 7 of group 0``, ``data loading`` or how it ended."""
    since_seconds: float | None
    """How long before the newest record of the run it came there."""
    last: str | None
    """The last call that completed: ``all_reduce 6, train.py:90``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackBranch:
    """One frame of the merged stacks of all ranks, in a walk through their tree from the outermost frame."""

    depth: int
    thread: str
    """The thread it is of, numbers in its name left out."""
    function: str
    file: str
    lines: tuple[int, ...]
    """Where in the function the ranks are."""
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """Where ranks waited, and whose own work took long: a row per rank, a column per step or per block of steps."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    """The first step of each column."""
    waiting_ms: tuple[tuple[float | None, ...], ...]
    own_ms: tuple[tuple[float | None, ...], ...]
    """What the step took without communication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A call of a rank, in seconds from the first one shown."""

    rank: int
    group: str
    label: str
    operation: int
    """Equal for the calls of one collective."""
    start_seconds: float
    end_seconds: float
    state: str
    """``ended``, ``failed`` or ``open``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The memory of a rank over time."""

    rank: int
    what: str
    seconds: tuple[float, ...]
    gibibytes: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """Ranks that wait in one operation for ranks that have not come to it."""

    waiters: tuple[int, ...]
    absent: tuple[int, ...]
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """What can be drawn of a run, for reporters that draw."""

    heat: Heat | None = None
    spans: tuple[Span, ...] = ()
    incident_seconds: float | None = None
    """When the incident of the verdict began, on the clock of the spans."""
    curves: tuple[Curve, ...] = ()
    arrows: tuple[Arrow, ...] = ()
    manuals: Mapping[str, str] = field(default_factory=dict)
    """What findings mean, by code."""
    left_out: tuple[str, ...] = ()
    """What is not drawn because it would be too much, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that reporters render."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    positions: tuple[Position, ...]
    triage: Mapping[str, str]
    """Question of the triage, in order, to its answer or to why these logs cannot answer it."""
    performance: Mapping[str, Any]
    data_quality: Mapping[str, Any]
    stacks: tuple[StackBranch, ...] = ()
    """Stacks of all ranks that left any, merged."""
    attempts: tuple[Mapping[str, Any], ...] = ()
    """The attempts of a job that was started anew, the oldest first."""
    goodput: Mapping[str, Any] | None = None
    """What of their steps and time was kept, and what was lost to which end."""
    pictures: Pictures | None = None
    """Only where it was asked for; no part of the JSON contract."""


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as the versioned JSON contract: lists sorted and never null."""
    told = dataclasses.asdict(dataclasses.replace(report, pictures=None))
    del told["pictures"]
    return {"schema": SCHEMA, **told}
