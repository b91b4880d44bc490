"""Which of several findings is the verdict."""

from collections.abc import Iterable, Sequence

from distdiag.analyzers._wording import counted, named, verb
from distdiag.analyzers.investigation.giving_up import INTERRUPTION
from distdiag.analyzers.investigation.lives import TORN_DOWN, End, lives_of
from distdiag.analyzers.investigation.sources import healthy_confidence, in_words, recorded
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.investigation.vanished import LastSeen
from distdiag.analyzers.performance.accusations import unexplained_in
from distdiag.analyzers.performance.traced import incomparable
from distdiag.analyzers.training.numerics import DIVERGED
from distdiag.findings import Confidence, Finding, Severity, Verdict
from distdiag.run import Run

HEALTHY = "healthy"
ROOTS = ("out-of-memory", "skipped-steps", "uneven-batches")
"""They are found only where something died or stands still because of them: a root outranks its consequence."""
FAMILIES = ("DD3", "DD5", "DD4", "DD7", "DD2", "DD6", "DD1")
"""Stuck, numerics, memory, checkpoint, slow, data; what is wrong with the logs speaks last."""
_PLACES = {"DD203": "DD204+"}
"""Uneven sequences come after an uneven stage: both may be there, and the stage is the surer cause."""
_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)


def by_gravity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings, the verdict's first; the order of logs and analyzers does not matter.

    Of those that cost time the costliest is first, and behind it what has no measured cost.
    """
    return tuple(sorted(findings, key=_gravity))


def _gravity(finding: Finding) -> tuple[bool, bool, int, int, float, str, tuple[int, ...], str]:
    family = FAMILIES.index(finding.code[:3]) if finding.code[:3] in FAMILIES else len(FAMILIES)
    if finding.cause == DIVERGED:  # the doing of no rank and no machine: what names one says more
        family = FAMILIES.index("DD1")
    root = finding.name in ROOTS and finding.severity is Severity.ERROR
    return (
        finding.severity is Severity.INFO,
        not root,
        family,
        _SEVERITIES.index(finding.severity),
        -(finding.lost_share or 0.0),
        _PLACES.get(finding.code, finding.code),
        finding.culprits,
        finding.summary,
    )


def verdict_of(run: Run, findings: Sequence[Finding]) -> Verdict:
    """Return the gravest finding of at least a warning as the verdict, else that the run is healthy."""
    grave = [finding for finding in findings if finding.severity is not Severity.INFO]
    if not grave:
        return _healthy(run)
    first = grave[0]
    return Verdict(
        name=first.name,
        summary=first.summary,
        code=first.code,
        culprits=first.culprits,
        victims=first.victims,
        group=first.group,
        seq=first.seq,
        op=first.op,
        step=first.step,
        site=first.site,
        sites=first.sites,
        cause=first.cause,
        confidence=first.confidence,
        evidence=first.evidence,
        next_steps=first.action,
    )


def _healthy(run: Run) -> Verdict:
    if run.only_measured:
        return _nothing_in_tables(run)
    calls = counted(len(run.calls), "call")
    lives = lives_of(run) if run.alive else {}
    running = [rank for rank, life in lives.items() if life.end is End.RUNNING]
    if running:
        return _running(run, running, calls)
    if recorded(run) == frozenset(run.ranks):
        steps = counted(run.steps["step"].nunique(), "step")
        summary = f"{named(run.ranks)} {_ended(run)}: {steps}, {calls}, all of them matched"
    else:
        summary = f"nothing waits in vain and nothing disagrees in the {calls} told of {named(run.ranks)}"
    return Verdict(
        name=HEALTHY,
        summary=summary,
        confidence=healthy_confidence(run),
        evidence=tuple(text for text in (in_words(run), data_in_words(run)) if text is not None),
    )


def _ended(run: Run) -> str:
    """Return how ranks ended that have nothing wrong with them."""
    faults = run.faults
    interrupted = set(faults[(faults["fault"] == "exit") & (faults["type"] == INTERRUPTION)]["rank"])
    told = set(run.crashes[run.crashes["kind"] == TORN_DOWN]["rank"]) - interrupted
    if interrupted | told == set(run.ranks):
        how = ("interrupted by the keyboard or SIGINT",) * bool(interrupted) + ("told to stop by SIGTERM",) * bool(told)
        return f"{verb(run.ranks, 'was', 'were')} {' or '.join(how)}"
    also = f", {named(interrupted)} because of the keyboard or SIGINT" if interrupted else ""
    return f"ended in an orderly way{also}"


def _running(run: Run, running: Sequence[int], calls: str) -> Verdict:
    """Return that a job goes on; what its ranks wait in at one moment is not a standstill."""
    ended = sorted(set(run.ranks) - set(running))
    steps = _newest_steps(run, running)
    at = "" if not steps else f", step {steps[0]}" if steps[0] == steps[-1] else f", steps {steps[0]}-{steps[-1]}"
    also = f"; {named(ended)} ended in an orderly way" if ended else ""
    return Verdict(
        name=HEALTHY,
        summary=f"{named(running)} {verb(running, 'is', 'are')} running{at}, and nothing is stuck{also}\n"
        f"{calls} so far, and those that have met agree.",
        step=steps[-1] if steps else None,
        confidence=healthy_confidence(run),
        evidence=tuple(text for text in (in_words(run), data_in_words(run)) if text is not None),
    )


def _newest_steps(run: Run, ranks: Sequence[int]) -> list[int]:
    """Return the steps that ranks are in, in order."""
    seen = LastSeen(run)
    return sorted(seen.step(rank) for rank in ranks) if len(run.steps) else []


def _nothing_in_tables(run: Run) -> Verdict:
    ranks = sorted({*run.operations["rank"].tolist(), *run.profiles["rank"].tolist()})
    rows = " and ".join(f"{number:,} {name}" for name, number in run.quality.measured_rows.items())
    summary = f"nothing stands out in the {rows} measured on {counted(len(ranks), 'rank')}"
    if not run.operations.empty:
        return Verdict(name=HEALTHY, summary="\n".join(filter(None, (summary, unexplained_in(run)))))
    traces = f"profiler traces of {named(ranks)}"
    if not run.profiles["window_ns"].any():
        # Nothing was measured, so nothing can stand out: the reasons are in the table.
        return Verdict(name=HEALTHY, summary=f"no device work to judge in {traces}", confidence=Confidence.LOW)
    alone = incomparable(run)
    covers = "a profiler trace covers a few steps of one rank: what other steps and ranks did is not told"
    return Verdict(
        name=HEALTHY,
        summary=f"nothing stands out in {traces}",
        confidence=Confidence.MEDIUM if alone is None else Confidence.LOW,
        evidence=(covers,) if alone is None else (alone, covers),
    )
