"""Sentences that slow findings share: what a step loses, who waits where, and what a rank was seen at."""

from collections.abc import Callable, Iterator

from distdiag.analyzers._wording import counted, named, seconds
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.slowness.judged import judge
from distdiag.analyzers.slowness.laggards import Laggard
from distdiag.analyzers.slowness.pauses import Pauses, pauses_in
from distdiag.analyzers.slowness.sites import Seen, seen_at_work, waiting_at
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

PARTS = {
    "data": "in its data loader",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in the optimizer",
    "checkpoint": "in a checkpoint",
    "other": "between the optimizer and the next forward",
}
SURE = 0.9
"""Share of steps in which a rank is late, above which chance is out of the question."""
BUSY = 0.5
"""Of a rank's own time on a processor, below which it rather waits for something than computes."""


def percent(share: float) -> str:
    """Return a share as ``38 %``."""
    return f"{100 * share:.0f} %"


def gained(gain_ns: float, step_ns: float) -> str:
    """Return what would be gained: ``without it a step would take 35 ms instead of 125 ms (72 % of the job)``."""
    left = max(0.0, step_ns - gain_ns)
    share = percent(gain_ns / step_ns if step_ns else 0.0)
    return f"without it a step would take {seconds(left)} instead of {seconds(step_ns)}: {share} of the job"


def cost(pauses: Pauses) -> str:
    """Return what pauses cost: ``That is 38 % of the job: without it a step would take …``."""
    share, whole = pauses.lost_ns / pauses.total_ns, pauses.total_ns / pauses.steps
    left = seconds(whole * (1 - share))
    return (
        f"That is {percent(share)} of the job: without it a step would take {left} on average instead of "
        f"{seconds(whole)}."
    )


def of_pauses(
    run: Run,
    column: str,
    *,
    code: str,
    name: str,
    what: str,
    summary: Callable[[Pauses], str],
    cause: Callable[[Pauses], str],
    action: Callable[[Pauses], tuple[str, ...]],
    also: Callable[[Pauses], tuple[str, ...]] = lambda _: (),
) -> Iterator[Finding]:
    """Yield one finding per role that loses its time to the pauses in a column of the ledger.

    ``what`` names one pause; ``cost`` is added to the sentence that ``summary`` makes, ``also`` to the evidence.
    """
    for grid in judge(run).roles:
        pauses = pauses_in(grid, column)
        if pauses is None:
            continue
        yield Finding(
            code=code,
            name=name,
            severity=Severity.WARNING,
            summary=f"{summary(pauses)}\n{cost(pauses)}",
            culprits=pauses.ranks,
            victims=tuple(rank for rank in grid.ranks if pauses.ranks and rank not in pauses.ranks),
            step=pauses.worst_step,
            cause=cause(pauses),
            evidence=(
                f"{pauses.paused_steps} of {counted(pauses.steps, 'step')} have {what}, the longest of "
                f"{seconds(pauses.longest_ns)}",
                *also(pauses),
                data_in_words(run),
            ),
            action=action(pauses),
        )


def where(laggard: Laggard, seen: Seen | None) -> str:
    """Return where a laggard loses its time: ``in backward (train.py:31)``."""
    place = PARTS[laggard.part] if laggard.part is not None else "all over its step"
    return place + (f" ({short(seen.site)} in {seen.times} of {seen.looks} looks)" if seen is not None else "")


def seen_of(run: Run, laggard: Laggard) -> Seen | None:
    """Return the line at which a laggard was mostly seen."""
    return seen_at_work(run, laggard.rank, from_step=laggard.first_step)


def waits(run: Run, laggard: Laggard) -> str:
    """Return who waits for a laggard, and where: ``ranks 0,2 wait for it in all_reduce (train.py:33)``."""
    found = waiting_at(run, laggard.peers, from_step=laggard.first_step)
    place = "" if found is None else f" in {found[0]} ({short(found[1])})"
    verb = "waits" if len(laggard.peers) == 1 else "wait"
    return f"{named(laggard.peers)} {verb} for it{place}"


def evidence_of(run: Run, laggard: Laggard) -> tuple[str, ...]:
    """Return the numbers behind a laggard."""
    longest = sorted(laggard.parts_ns.items(), key=lambda each: (-each[1], each[0]))
    parts = ", ".join(f"{name} {seconds(excess)}" for name, excess in longest if excess >= 0.05 * laggard.late_by_ns)
    return (
        f"rank {laggard.rank} is late in {laggard.late_steps} of {counted(laggard.steps, 'step')}, "
        f"by {seconds(laggard.late_by_ns)} in the middle one",
        f"longer than its peers' by: {parts}",
        f"the others waited {seconds(laggard.caused_ns)} for it in all",
        *_processor(laggard),
        data_in_words(run),
    )


def confidence_of(run: Run, laggard: Laggard) -> Confidence:
    """Return how sure a laggard is."""
    doubtful = laggard.late_steps < SURE * laggard.steps or len(laggard.peers) < 2 or not run.quality.whole
    return Confidence.MEDIUM if doubtful else Confidence.HIGH


def _processor(laggard: Laggard) -> tuple[str, ...]:
    """Tell how much of its own time the process was on a processor, where that was recorded."""
    if laggard.cpu_ns != laggard.cpu_ns or not laggard.own_ns:  # NaN: not recorded
        return ()
    text = f"its process used {seconds(laggard.cpu_ns)} of processor time a step"
    if laggard.cpu_ns < BUSY * laggard.own_ns:
        return (f"{text}: most of its own {seconds(laggard.own_ns)} it waits for something, or for a processor",)
    return (f"{text}, so it computes",)
