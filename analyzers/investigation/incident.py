"""What an investigation ends with, and how it becomes a finding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distdiag.analyzers.investigation.creation import GroupLists
from distdiag.analyzers.investigation.deaths import Death
from distdiag.analyzers.investigation.divergence import Divergence
from distdiag.analyzers.investigation.fits import Misfit
from distdiag.analyzers.investigation.issued import Issued, group_words
from distdiag.analyzers.investigation.joining import INIT, OWN_STORE, Unmet
from distdiag.analyzers.investigation.naming import Named
from distdiag.analyzers.investigation.queues import Halted
from distdiag.analyzers.investigation.reductions import ReductionMismatch
from distdiag.analyzers.investigation.sizes import SizeMismatch, ToldSizes
from distdiag.analyzers.investigation.splits import SplitMismatch
from distdiag.analyzers.investigation.waitfor import Wait
from distdiag.analyzers.investigation.whereabouts import Whereabouts
from distdiag.findings import Confidence, Finding, Severity

JOINING = (INIT, OWN_STORE)
"""What a process does once, to join its job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Members of a group that issued different calls."""

    divergence: Divergence
    named: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Ranks that others wait for and that wait for nobody."""

    wait: Wait
    places: tuple[Whereabouts, ...]
    """Where the absent ranks were; empty where they left no log."""
    until_ns: int
    """When the waiters gave up, or the newest record of the run."""
    arrived_ns: int | None = None
    """When they came after all, their waiters having given up."""
    timeout_seconds: float | None = None
    first: tuple[int, int] | None = None
    """Who gave up first, and after how many nanoseconds, where that was in another operation, behind this one."""
    apart: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """Those of the culprits that other operations lack and not this one, and who waits for them alone."""
    one_time: bool = True
    """Whether the clocks of those that waited and of the absent compare; else nothing tells how late they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """Operations that wait for one another."""

    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """An operation that all its members are in and that does not end."""

    wait: Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Halts:
    """Devices that stopped in operations which their peers completed."""

    halted: tuple[Halted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surplus:
    """A call that some ranks began after all others had ended in an orderly way."""

    wait: Wait
    call: Issued
    ended: tuple[int, ...]
    forwards: tuple[int, int] | None
    """Forwards begun by the waiting rank, and by those that ended, where they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slip:
    """Members of a group that stand in different operations at different numbers of it."""

    behind: Wait
    ahead: Wait
    ops: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Miscount:
    """A rank that issued the calls of one line more or less often than others do in groups of their own."""

    call: Issued
    """One of them, at which the other members stand."""
    rank: int
    count: int
    usual: int
    peers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained:
    """Ranks that failed or vanished without a reason that these logs hold."""

    ranks: tuple[int, ...]
    reason: str


Disagreements = (
    Disagreement | SplitMismatch | SizeMismatch | ToldSizes | GroupLists | Unmet | Misfit | Slip | Surplus | Miscount
)
Basis = Disagreements | ReductionMismatch | Death | Absence | Circle | Together | Halts | Unexplained


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that went wrong first, with what it rests on."""

    name: str
    time_ns: int
    basis: Basis
    culprits: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    group: str | None = None
    members: tuple[int, ...] | None = None
    seq: int | None = None
    op: str | None = None
    step: int | None = None
    site: str | None = None
    sites: Mapping[int, str] = field(default_factory=dict)
    cause: str | None = None
    confidence: Confidence = Confidence.HIGH
    evidence: tuple[str, ...] = ()
    before: str = ""
    """What a culprit had caught just before, where something tells."""

    @property
    def operation(self) -> str:
        """Return ``all_reduce 7 of group dp (8 ranks)``."""
        numbered = self.seq is not None and self.op not in JOINING
        words = f"{self.op or 'operation'} {self.seq}" if numbered else self.op or "operation"
        return words if self.group is None else f"{words} of {group_words(self.group, self.members)}"

    @property
    def number(self) -> str:
        """Return ``call 7``, or ``a call`` where its number is not known."""
        return "a call" if self.seq is None else f"call {self.seq}"

    @property
    def at_step(self) -> str:
        """Return ``, step 12``, or nothing where the step is not known."""
        return "" if self.step is None else f", step {self.step}"

    def finding(self, code: str, summary: str, action: Sequence[str]) -> Finding:
        """Return the finding that says this in words."""
        return Finding(
            code=code,
            name=str(self.name),
            severity=Severity.ERROR,
            summary=f"{summary} Just before, {self.before}." if self.before else summary,
            culprits=self.culprits,
            victims=self.victims,
            group=self.group,
            seq=self.seq,
            op=self.op,
            step=self.step,
            site=self.site,
            sites=dict(sorted(self.sites.items())),
            cause=self.cause,
            confidence=self.confidence,
            evidence=(*((self.before,) if self.before else ()), *self.evidence),
            action=tuple(action),
        )
