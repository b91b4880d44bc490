"""A rank computes slower than its peers, step after step, and all others wait for it.

What it means
    Every collective waits for its last member, so one slow rank sets the pace of the whole job. Its peers spend the
    difference in communication, which makes their steps, and even their backwards, look as long as its own.

How it is found
    A rank's own time is its step without what calls held it up. It is compared with the median of the ranks that do
    the same work (of its pipeline stage): at least 10 % of the step and 5 ms longer, in at least 80 % of the steps
    after the warm-up, and the others have to wait for it; without it the step has to be at least 10 % shorter.
    Waiting for a processor is no own time, and where a rank waits for one longer than it is late, it is not accused:
    that others wait for it is mentioned, where that is 30 % of the step and more.
    A rank that is late in some steps only, every tenth or from some moment on, is named where that costs at least
    20 % of the job's time (12 % where it comes once in so many steps), in at least 5 steps, and where little is lost to
    any other rank.
    Where another rank is the slowest each time, in half of at least 20 steps, and where that costs 15 % of the time,
    nobody is accused: the work of a step is uneven, and the part of the step in which ranks differ is named.
    Ranks that are late in the same way, those of one host, are told as one. Of a rank that is late by 30 % in each of
    five to nine steps only that is mentioned.
    The part of the step that is longer is named; where data, collections, compilations, checkpoints or the lengths of
    its sequences explain it, the finding is another one.
    From tables of operations the steps are simulated again with the slowest workers at the usual pace. Where that
    takes away at least half of what is lost, and where the worker needs at least 1.1 times as long for a microbatch
    as the others of its pipeline stage, it is named. Where it is the only worker of its stage nobody is.
    From profiler traces of all ranks over at least three steps: the rank whose kernels compute at least 1.1 times as
    long as those of the ranks it shares its smallest group with, if it comes last in 80 % of the collectives of every
    step (its kernels of them are the shortest) and the others wait for it at least 5 % of the time.

What to do
    Look at the line the finding names. If all ranks run the same there, compare the machines: ``nvidia-smi -q -d
    PERFORMANCE,CLOCK`` on its host for throttling, ``top`` for other processes on its cores, and let the rank run on
    another host: if the slowness stays with the host, take it out.
"""

from collections.abc import Iterator

import numpy as np

from distdiag.analyzers._wording import counted, named, seconds, verb
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.performance import accusations, traced
from distdiag.analyzers.slowness.grid import Grid, of_others
from distdiag.analyzers.slowness.judged import COMPUTE, judge
from distdiag.analyzers.slowness.laggards import ENOUGH_STEPS, Laggard
from distdiag.analyzers.slowness.rhythm import rhythm_of
from distdiag.analyzers.slowness.telling import (
    alike,
    confidence_of,
    everyone_waits,
    evidence_of,
    more_work,
    names_of,
    of_moving,
    percent,
    seen_of,
    share_of,
    waits,
    where,
    whole_hosts,
    without,
)
from distdiag.analyzers.step_time_change import beside_changes
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

CODE = "DD201"
NAME = "compute-straggler"
PROCESSOR = "processor"
PERSISTENT = 0.8
"""Share of the steps."""
LONG_SHARE = 0.3
"""Of the step, spent in the queue beyond what the others spend there, and by the others waiting."""
LEAST_QUEUED_NS = 10e6
FEW = "few-steps"
FEW_STEPS = 5
"""Of fewer the warm-up is not left out."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per rank that is slower than its peers in nearly every step."""
    yield from accusations.slow_workers(run, CODE, NAME)
    yield from traced.slow_devices(run, CODE, NAME)
    for grid in judge(run).roles:
        yield from _in_queue(run, grid)
        yield from _in_few_steps(run, grid)
    yield from of_moving(run, code=CODE, name=NAME, of_data=False)
    for laggards in alike(beside_changes(run, judge(run).late_by(COMPUTE))):
        laggard, (ranks, victims) = laggards[0], names_of(laggards)
        lose, seen = verb(ranks, "It loses", "They lose"), seen_of(run, laggard)
        more = more_work(run, laggards)
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=f"{_pace(run, laggard, ranks)}\n{lose} them {where(laggard, seen)}; "
            f"{waits(run, laggards)}, and {without(laggard, ranks)}."
            + (f" Rank {laggard.rank} has {more[1]:g} {more[0]} in a step, the others {more[2]:g}." if more else ""),
            culprits=ranks,
            victims=victims,
            site=seen.site if seen is not None else None,
            cause=laggard.part,
            confidence=confidence_of(run, laggard),
            evidence=evidence_of(run, laggards),
            action=(
                *((f"give {named(ranks)} as many {more[0]} in a step as {named(victims)}",) if more else ()),
                *_action(laggard, ranks, victims, seen.site if seen is not None else None),
            ),
            lost_share=share_of(laggard),
        )


def _in_queue(run: Run, grid: Grid) -> Iterator[Finding]:
    """Mention ranks that wait for a processor in nearly every step: whose doing that is, no log of the job tells."""
    queued, waited = np.nan_to_num(grid["queued_ns"]), grid["waiting_ns"]
    least = np.maximum(LEAST_QUEUED_NS, LONG_SHARE * grid.step_ns)
    late = (queued - of_others(queued) >= least) & (of_others(waited) >= least)
    slow = late.mean(axis=1) >= PERSISTENT
    if len(grid.steps) < ENOUGH_STEPS or not slow.any():
        return
    ranks, peers = (tuple(np.array(grid.ranks)[rows].tolist()) for rows in (slow, ~slow))
    own, others, lost, whole = (
        seconds(float(np.median(each))) for each in (queued[slow], queued[~slow], waited[~slow], grid.step_ns)
    )
    yield Finding(
        code=CODE,
        name=NAME,
        severity=Severity.INFO,
        summary=f"{named(peers)} {verb(peers, 'waits', 'wait')} {lost} of each {whole} step for {named(ranks)}"
        f"{whole_hosts(run, ranks)}, which {verb(ranks, 'itself waits', 'themselves wait')} {own} of it for a "
        f"processor, {verb(ranks, 'its', 'their')} peers {others}",
        victims=peers,
        cause=PROCESSOR,
        confidence=Confidence.MEDIUM,
        evidence=(f"so in at least {percent(PERSISTENT)} of {counted(len(grid.steps), 'step')}", data_in_words(run)),
        action=(
            f"look at what else runs on the cores of {named(ranks)}: other processes, loader workers, more threads; "
            "and at how many cores each may use (taskset -p, limits of the container)",
        ),
    )


def _in_few_steps(run: Run, grid: Grid) -> Iterator[Finding]:
    """Mention whom the others waited for long in each of a few steps: whether that lasts, so few do not tell."""
    own = grid["own_ns"]
    late = own - of_others(own) >= np.maximum(LEAST_QUEUED_NS, LONG_SHARE * grid.step_ns)
    slow = late.all(axis=1)
    if not FEW_STEPS <= len(grid.steps) < ENOUGH_STEPS or not 0 < 2 * slow.sum() <= len(grid.ranks):
        return
    ranks, peers = (tuple(np.array(grid.ranks)[rows].tolist()) for rows in (slow, ~slow))
    theirs, others = (seconds(float(np.median(own[rows]))) for rows in (slow, ~slow))
    yield Finding(
        code=CODE,
        name=NAME,
        severity=Severity.INFO,
        summary=f"in each of {counted(len(grid.steps), 'step')} {named(ranks)} {verb(ranks, 'takes', 'take')} {theirs} "
        f"of {verb(ranks, 'its', 'their')} own, {named(peers)} {others}: too few to tell what lasts from chance",
        victims=peers,
        cause=FEW,
        confidence=Confidence.LOW,
        evidence=(f"{ENOUGH_STEPS} steps after the warm-up would do", data_in_words(run)),
        action=("let the job make more steps, and look again",),
    )


def _pace(run: Run, laggard: Laggard, ranks: tuple[int, ...]) -> str:
    times = f" ({laggard.own_ns / laggard.typical_ns:.1f}x)" if laggard.typical_ns > 0 else ""
    takes = "which takes" if len(ranks) == 1 else "each of which takes"
    their = verb(ranks, "its", "their")
    return (
        f"{everyone_waits(run, laggard, ranks)}, {takes} "
        f"{seconds(laggard.own_ns)} of its own {'then' if laggard.seldom else 'for a step'}, {their} peers "
        f"{seconds(laggard.typical_ns)}{times}"
    )


def _action(laggard: Laggard, ranks: tuple[int, ...], victims: tuple[int, ...], site: str | None) -> tuple[str, ...]:
    who = named(ranks)
    look = (
        (
            f"look at {short(site)}: what {verb(ranks, 'does', 'do')} {who} do there that {named(victims)} "
            f"{verb(victims, 'does', 'do')} not",
        )
        if site
        else ()
    )
    return (
        *look,
        *_now_and_then(laggard, who),
        f"run {who} on another host: if the slowness stays behind, it is the host (clocks, other processes on its "
        "cores)",
        f"if it moves along, profile rank {ranks[0]} beside a peer: py-spy record --pid, or the PyTorch profiler",
    )


def _now_and_then(laggard: Laggard, who: str) -> tuple[str, ...]:
    """Say what to look for where a rank is late in some steps only."""
    rhythm = rhythm_of(laggard.late_steps) if laggard.seldom else None
    if rhythm is None:
        return ()
    if rhythm.every == 1:
        return (f"what began on {who} at step {rhythm.first}: other processes, lower clocks, other data",)
    return (f"what does {who} do once in {rhythm.every} steps: a log, an evaluation, a profiler, a save",)
