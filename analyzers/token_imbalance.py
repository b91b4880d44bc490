"""Ranks get different amounts of work, and each step waits for the one with the most.

What it means
    Sequences differ in length, so that the ranks' batches differ in work, and the slowest rank changes from step to
    step. No machine is bad: the batches are uneven. Attention grows with the square of a length, so that equal
    numbers of tokens can still be unequal work.

How it is found
    The own times of all ranks in a step (without what calls held them up) are fitted by the tokens that
    ``distdiag.step(tokens=...)`` told, or by the sums of ``lengths`` and of their squares. The finding needs steps
    that lose at least 10 % and 5 ms to their slowest rank, and tokens that explain at least 80 % of the differences.
    Where experts are spread over the ranks, the rows that each rank gets from ``all_to_all`` are counted as its tokens.
    Where no lengths were told, forward and backward that grow together (correlation of 0.9) within ranks of uneven
    pace say the same, with less certainty.
    From tables of operations: the passes of a worker's microbatches vary, and forward and backward by the same amount
    (correlation of at least 0.95 within a worker).

What to do
    Balance the ranks' batches by their cost, not by the number of samples: sort samples by cost and give each next
    one to the rank with the least so far, or pack sequences to equal length. Experts: let the router's auxiliary loss
    or a capacity spread tokens, and do not put two that are much asked for on one rank.
"""

from collections.abc import Iterator

import numpy as np

from distdiag.analyzers._wording import counted, seconds
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.performance import accusations
from distdiag.analyzers.slowness.judged import judge
from distdiag.analyzers.slowness.lengths import Arrivals, Imbalance
from distdiag.analyzers.slowness.telling import gained, percent
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

CODE = "DD203"
NAME = "token-imbalance"
MOSTLY = 0.8
"""Share of steps from which on one rank is the slowest because it always gets the most."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per role whose ranks get uneven work."""
    yield from accusations.uneven_sequences(run, CODE, NAME)
    for imbalance in judge(run).imbalances:
        rank, count = imbalance.slowest[0]
        always = count >= MOSTLY * imbalance.steps
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=_summary(imbalance, rank, always=always),
            culprits=(rank,) if always else (),
            site=imbalance.routed.site if imbalance.routed is not None else None,
            op=imbalance.routed.op if imbalance.routed is not None else None,
            cause=_cause(imbalance),
            confidence=Confidence.HIGH if imbalance.told else Confidence.MEDIUM,
            evidence=(*_evidence(imbalance), data_in_words(run)),
            action=_action(imbalance),
            lost_share=imbalance.lost_ns / imbalance.step_ns if imbalance.step_ns else None,
        )


def _cause(imbalance: Imbalance) -> str:
    if imbalance.routed is not None:
        return "experts"
    return "lengths" if imbalance.told else "forward-and-backward"


def _summary(imbalance: Imbalance, rank: int, *, always: bool) -> str:
    if imbalance.routed is not None:
        return _of_experts(imbalance, imbalance.routed, rank, always=always)
    who = f"rank {rank}, which always gets the most" if always else "another rank, the one with the most to do"
    most = ""
    if imbalance.most_over_mean is not None:
        most = f"It has {imbalance.most_over_mean:.1f}x as many tokens as the average rank; tokens explain "
        most += f"{percent(imbalance.explained)} of how ranks differ. "
    return f"each step waits {seconds(imbalance.lost_ns)} for {who}\n{most}{_evenly(imbalance)}"


def _of_experts(imbalance: Imbalance, routed: Arrivals, rank: int, *, always: bool) -> str:
    who = f"the experts of rank {rank}, which always get the most tokens"
    who = who if always else "the experts that get the most tokens, those of one rank and then of another"
    times = f"{imbalance.most_over_mean:.1f}x as many as the average rank has"
    return (
        f"each step waits {seconds(imbalance.lost_ns)} for {who}\n"
        f"{routed.op} ({short(routed.site)}) brings them {times}; tokens explain "
        f"{percent(imbalance.explained)} of how ranks differ. {_evenly(imbalance)}"
    )


def _evenly(imbalance: Imbalance) -> str:
    return f"Evenly spread, {gained(imbalance.lost_ns, imbalance.step_ns)}."


def _evidence(imbalance: Imbalance) -> tuple[str, ...]:
    what = "tokens" if not imbalance.squares else "sums of lengths and of their squares"
    explained = (
        f"{what} explain {percent(imbalance.explained)} of the differences between ranks within steps"
        if imbalance.told
        else f"forward and backward grow together: correlation {imbalance.explained:.2f}; lengths were not told"
    )
    slowest = ", ".join(f"rank {rank} in {counted(count, 'step')}" for rank, count in imbalance.slowest[:4])
    rows = imbalance.routed.rows if imbalance.routed is not None else None
    most, mean = (0.0, 0.0) if rows is None else (np.nanmedian(rows.max(axis=0)), np.nanmean(rows))
    arrived = () if rows is None else (f"{most:.0f} tokens a step on the rank with the most, {mean:.0f} on average",)
    return explained, *arrived, f"the slowest was {slowest}, of {imbalance.steps}"


def _action(imbalance: Imbalance) -> tuple[str, ...]:
    if imbalance.routed is not None:
        return (
            f"look at the router before {short(imbalance.routed.site)}: raise its auxiliary loss, or give experts a "
            "capacity, so that tokens spread",
            "do not put two experts that are much asked for on one rank, or keep a second copy of such a one",
        )
    return (
        "give each rank batches of equal cost instead of equal numbers of samples: the longest samples first, "
        "each to the rank with the least so far",
        "or pack sequences to one length, so that all ranks compute the same",
        *(() if imbalance.told else ("say distdiag.step(lengths=[...]), to see how much lengths explain",)),
    )
