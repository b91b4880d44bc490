"""What findings say of ranks whose memory grows without end, be it of a device or of the host."""

from collections.abc import Iterator, Sequence

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.memory import Leak, size
from distdiag.findings import Finding, Severity
from distdiag.run import Run

MOST_TOLD = 8


def of_leaks(
    run: Run, leaks: Sequence[Leak], *, code: str, name: str, where: str, look_for: str, compare: str
) -> Iterator[Finding]:
    """Yield one finding for the ranks whose memory ``where`` grows; none without leaks."""
    if not leaks:
        return
    ranks = tuple(leak.rank for leak in leaks)
    first, second = _sentences(leaks, f"the memory of the {where}", len(run.ranks))
    yield Finding(
        code=code,
        name=name,
        severity=Severity.WARNING if any(leak.matters for leak in leaks) else Severity.INFO,
        summary=f"the {where} memory of {named(ranks)} {first}\n{second}",
        culprits=ranks if len(leaks) < len(run.ranks) else (),
        step=min(leak.growth.first_step for leak in leaks),
        evidence=(*(leak.in_words() for leak in leaks[:MOST_TOLD]), data_in_words(run)),
        action=(f"look on {named(ranks)} for {look_for}", compare),
    )


def _sentences(leaks: Sequence[Leak], what: str, ranks: int) -> tuple[str, str]:
    """Return two sentences on ranks whose memory grows: how much and where, and when it ends."""
    worst = max(leaks, key=lambda leak: leak.growth.per_step)
    growth = worst.growth
    others = ranks - len(leaks)
    first = (
        f"grows by {size(growth.per_step)} a step: from {size(growth.first)} in step {growth.first_step} to "
        f"{size(growth.last)} in step {growth.last_step}"
    )
    if others:
        first += f"; on the other {others} it does not" if others > 1 else "; on the other one it does not"
    lefts = [leak.steps_left for leak in leaks if leak.steps_left is not None]
    if not lefts:
        return first, "What limit it has is not known."
    return first, f"At this pace {what} lasts for about {min(lefts):,} more steps."
