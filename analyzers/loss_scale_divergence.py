"""Data-parallel ranks scaled their losses with different factors.

What it means
    Each rank divides the averaged gradients by its own loss scale. Where scales differ the same gradients become
    different updates, replicas go apart without an error, and a rank may leave out steps that the others make.

How it is found
    The scale that the loss scaler holds at each step is compared between the ranks that average their gradients.

What to do
    Let all ranks have one scale: find out whether a gradient is not finite after the averaging too; where a rank looks
    at gradients that were not averaged or that are sharded, use a scaler that asks its peers
    (``ShardedGradScaler``); load the scaler's state on all ranks.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, named, verb
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.checksums import ScaleSplit, desyncs, scale_splits
from distdiag.analyzers.training.peers import by_value
from distdiag.findings import Confidence, Finding, Severity
from distdiag.replicas import minority
from distdiag.run import Run

CODE = "DD504"
NAME = "loss-scale-divergence"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the data-parallel group whose scales went apart first."""
    for split in scale_splits(run)[:1]:
        yield _finding(run, split)


def _finding(run: Run, split: ScaleSplit) -> Finding:
    odd = minority(split.scales)
    values = ", ".join(f"{scale:g} on {named(ranks)}" for scale, ranks in by_value(split.scales))
    skipped = run.numerics[run.numerics["skipped"] & (run.numerics["step"] <= split.step)]
    skips = {int(rank): int(count) for rank, count in skipped.groupby("rank")["step"].nunique().items()}  # type: ignore[call-overload]
    evidence = [
        f"{named(ranks)} left out {counted(int(str(count)), 'step')} until then"
        for count, ranks in by_value({rank: skips.get(rank, 0) for rank in split.scales})
    ]
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.ERROR,
        summary=(
            f"the loss scale differs between ranks that average their gradients from step {split.step} on: {values}\n"
            f"{_course(split)}{_consequence(run, split)}"
        ),
        culprits=odd,
        group=split.group.group,
        step=split.step,
        confidence=Confidence.HIGH if odd else Confidence.MEDIUM,
        evidence=(*evidence, data_in_words(run)),
        action=(
            f"find out why {named(odd) if odd else 'one rank'} {verb(odd or (0,), 'changes', 'change')} its scale "
            "alone: gradients that are not finite before they are averaged, or a scaler state that was not loaded",
            "let all ranks decide together: check gradients after the averaging, or use ShardedGradScaler",
        ),
    )


def _course(split: ScaleSplit) -> str:
    before = "from the first step on" if split.equal_step is None else f"equal until step {split.equal_step}"
    return f"They differ in {split.steps} of {counted(split.compared, 'step')}, {before}."


def _consequence(run: Run, split: ScaleSplit) -> str:
    apart = [each for each in desyncs(run) if each.group.members == split.group.members]
    return f" Replicas differ from step {apart[0].step} on." if apart else ""
