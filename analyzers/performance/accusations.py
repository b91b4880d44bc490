"""Findings from the simulations of a job: who or what makes a step longer than it has to be, and what mending gives."""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, named, seconds
from distdiag.analyzers.performance import job
from distdiag.analyzers.performance.causes import GC_PAUSE, LAUNCH_DELAY, OTHER, STRAGGLING, Causes, causes_of
from distdiag.analyzers.performance.what_if import Fix, WhatIf, what_if
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

SECOND_NS = 1_000_000_000
LONG_SECONDS = 100
ENOUGH_STEPS = 5
"""Of fewer steps one bad moment may be all there is."""


def slow_workers(run: Run, code: str, name: str) -> Iterator[Finding]:
    """Yield one finding for the workers that compute slower than the others of their stage and explain the loss."""
    answer, causes = _asked(run)
    if answer is None or causes is None or not causes.slow_workers:
        return
    ranks = tuple(sorted(each.worker.rank for each in causes.slow_workers))
    worst = causes.slow_workers[0]
    yield Finding(
        code=code,
        name=name,
        severity=_severity(answer),
        summary=f"{_workers(causes)} {'makes' if len(ranks) == 1 else 'make'} a step {answer.slowdown:.2f}x as long: "
        + _instead(answer, answer.fixed_workers),
        culprits=ranks,
        victims=tuple(sorted(set(answer.job.ranks.ravel().tolist()) - set(ranks))),
        confidence=_confidence(answer, sure=worst.peers > 1),
        evidence=(
            f"a microbatch takes rank {worst.worker.rank} {_time(worst.seconds)}, "
            f"{worst.seconds / worst.peers_seconds:.2f}x the {_time(worst.peers_seconds)} of "
            f"{counted(worst.peers, 'other worker')} of stage {worst.worker.stage}",
            _explained(answer, answer.fixed_workers),
            *_from(answer),
        ),
        action=(
            f"look at the device and host of {named(ranks)}, and of the ranks that share their tensors: "
            "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE",
            f"if nothing is wrong there, run {named(ranks)} on another host and compare the time of a microbatch",
        ),
    )


def heavy_stage(run: Run, code: str, name: str) -> Iterator[Finding]:
    """Yield one finding for a pipeline stage that computes longer than the others and explains the loss."""
    answer, causes = _asked(run)
    heavy = causes.heavy_stage if causes is not None else None
    if answer is None or heavy is None:
        return
    fix = answer.fixed_stages[heavy.stage]
    last = heavy.stage == answer.job.stages[-1]
    called = f"the last pipeline stage ({heavy.stage})" if last else f"pipeline stage {heavy.stage}"
    yield Finding(
        code=code,
        name=name,
        severity=_severity(answer),
        summary=f"{called} takes {heavy.seconds / heavy.others_seconds:.2f}x as long for a microbatch as the others: "
        + _instead(answer, fix),
        culprits=heavy.ranks,
        victims=tuple(sorted(set(answer.job.ranks.ravel().tolist()) - set(heavy.ranks))),
        confidence=_confidence(answer, sure=len(answer.job.dp) > 1),
        evidence=(
            f"a microbatch takes stage {heavy.stage} ({named(heavy.ranks)}) {_time(heavy.seconds)}, "
            f"the other stages {_time(heavy.others_seconds)} on average",
            _explained(answer, fix),
            *(() if len(answer.job.dp) > 1 else ("each stage has one worker: a slow device would look the same",)),
            *_from(answer),
        ),
        action=(
            f"give stage {heavy.stage} fewer layers"
            + (": its loss and vocabulary projection count as layers too" if last else ""),
            "then compare the time of a microbatch by stage again",
        ),
    )


def uneven_sequences(run: Run, code: str, name: str) -> Iterator[Finding]:
    """Yield one finding where the passes of a worker vary, forward and backward by the same amount."""
    answer, causes = _asked(run)
    if answer is None or causes is None or causes.passes is None or not causes.uneven_sequences:
        return
    passes = causes.passes
    yield Finding(
        code=code,
        name=name,
        severity=_severity(answer),
        summary=f"microbatches differ by {passes.variation:.0%} in the time they take, as sequences of different "
        f"lengths do: evened out, a step would take {_time(answer.ideal)} instead of {_time(answer.simulated)} at best",
        confidence=_confidence(answer, sure=True),
        evidence=(
            f"forward and backward time of a microbatch correlate {passes.correlation:.3f} within a worker (median); "
            "what slows a device down does not follow the microbatch",
            *_from(answer),
        ),
        action=(
            "give every data-parallel rank the same number of tokens, and of tokens squared, in a step: sort sequences "
            "by length and hand out the longest first",
            "record lengths with distdiag.step(tokens=...) to see how much they explain",
        ),
    )


def collections(run: Run, code: str, name: str) -> Iterator[Finding]:
    """Yield one finding where garbage collections explain the loss."""
    answer, causes = _asked(run)
    if answer is None or causes is None or causes.word != GC_PAUSE:
        return
    of, fix = answer.job, answer.fixed_types[job.GARBAGE]
    pauses = answer.work[(of.nodes["op"] == job.GARBAGE).to_numpy()]
    paused = int((pauses.sum(axis=0) > 0).any(axis=0).sum())
    yield Finding(
        code=code,
        name=name,
        severity=_severity(answer),
        summary=f"garbage collections pause workers for up to {_time(float(pauses.max()))}, each at a time of its own: "
        f"if all took the same time, a step would take {_time(fix.seconds)} instead of {_time(answer.simulated)}",
        cause="garbage-collection",
        confidence=_confidence(answer, sure=True),
        evidence=(
            f"{paused} of {counted(len(of.steps), 'step')} have a collection",
            _explained(answer, fix),
            *_from(answer),
        ),
        action=(
            "call gc.disable(), and gc.collect() every few hundred steps, on all ranks in the same step",
            "call gc.freeze() when model and data are loaded: the collector leaves them alone then",
        ),
    )


def unexplained_in(run: Run) -> str | None:
    """Return that steps take longer than they could, where nothing explains it, with what varies the most."""
    answer, causes = _asked(run)
    if answer is None or causes is None or causes.word not in (LAUNCH_DELAY, OTHER):
        return None
    op, fix = max(answer.fixed_types.items(), key=lambda item: (item[1].share or 0.0, item[0]))
    return (
        f"A step takes {answer.slowdown:.2f}x as long as if all operations of a kind took the same time, and no "
        "worker, stage or length of sequences explains half of that; "
        f"{op} varies the most: {_share_of(fix):.0%} of it."
    )


def _share_of(fix: Fix) -> float:
    """Return the share of the loss that goes away, 0 where nothing is lost."""
    return 0.0 if fix.share is None else fix.share


def _asked(run: Run) -> tuple[WhatIf | None, Causes | None]:
    answer = what_if(run)
    return answer, causes_of(answer) if answer is not None else None


def _workers(causes: Causes) -> str:
    if len(causes.slow_workers) > 1:
        return named(each.worker.rank for each in causes.slow_workers)
    worker = causes.slow_workers[0].worker
    return f"rank {worker.rank} (data-parallel rank {worker.dp} of stage {worker.stage})"


def _instead(answer: WhatIf, fix: Fix) -> str:
    return f"without that it would take {_time(fix.seconds)} instead of {_time(answer.simulated)}"


def _explained(answer: WhatIf, fix: Fix) -> str:
    share = _share_of(fix)
    part = f"all ({share:.0%})" if share >= 1 else f"{share:.0%}"
    return (
        f"that is {part} of what a step loses against the {_time(answer.ideal)} that it would take if all operations "
        "of a kind took the same time"
    )


def _from(answer: WhatIf) -> tuple[str, ...]:
    of = answer.job
    shape = f"{counted(len(of.stages), 'stage')} x {counted(len(of.dp), 'data-parallel rank')}"
    steps = f"simulated from {counted(len(of.steps), 'step')} of {shape}"
    if not of.not_understood:
        return (steps,)
    return steps, f"operations that were left out: {', '.join(of.not_understood)}"


def _severity(answer: WhatIf) -> Severity:
    return Severity.WARNING if answer.slowdown >= STRAGGLING else Severity.INFO


def _confidence(answer: WhatIf, *, sure: bool) -> Confidence:
    return Confidence.HIGH if sure and len(answer.job.steps) >= ENOUGH_STEPS else Confidence.MEDIUM


def _time(value: float) -> str:
    return f"{value:.3g} s" if 1 <= value < LONG_SECONDS else seconds(value * SECOND_NS)
