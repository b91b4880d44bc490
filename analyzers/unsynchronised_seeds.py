"""Ranks divide one data set by samplers that do not agree.

What it means
    A distributed sampler shuffles the whole data set and takes every n-th sample of it. That divides the data only if
    all ranks shuffle alike: with different seeds or epochs the shares come from different orders, overlap, and leave
    samples out.

How it is found
    Each rank writes seed, epoch and number of shares of its sampler when an epoch begins; data-parallel ranks that go
    through the same data set are compared.

What to do
    Give all ranks the same seed (the seed that must differ between ranks is that of dropout and augmentation), and
    call ``set_epoch`` with the same number on all of them.
"""

from collections.abc import Iterator
from itertools import combinations

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.peers import by_value
from distdiag.analyzers.training.samplers import WORDS, SamplerSplit, sampler_splits
from distdiag.analyzers.training.samples import overlap
from distdiag.findings import Confidence, Finding, Severity
from distdiag.replicas import minority
from distdiag.run import Run

CODE = "DD604"
NAME = "unsynchronised-seeds"
ACTIONS = {
    "seed": "give DistributedSampler the same seed on all ranks: seed=args.seed, not seed + rank",
    "epoch": "call sampler.set_epoch(epoch) on all ranks with the same epoch, after a restart too",
    "replicas": "give the sampler the same num_replicas on all ranks, the number of data-parallel ranks",
}
MOST_PAIRS = 8


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the setting of samplers that differs."""
    for split in sampler_splits(run)[:1]:
        odd = minority(split.values)
        values = ", ".join(f"{value} on {named(ranks)}" for value, ranks in by_value(split.values))
        loader = next(iter(split.streams.values())).loader
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=(
                f"the {WORDS[split.setting]} of {loader['sampler']} differs between ranks that divide one data set "
                f"({loader['dataset']}), from step {split.step} on: {values}\n"
                f"Their shares come from different orders{_shared(split)}."
            ),
            culprits=odd,
            step=split.step,
            cause=split.setting,
            confidence=Confidence.HIGH if odd else Confidence.MEDIUM,
            evidence=(data_in_words(run),),
            action=(ACTIONS[split.setting],),
        )


def _shared(split: SamplerSplit) -> str:
    """Return how much ranks whose setting differs have in common, if that can be told."""
    pairs = [pair for pair in combinations(split.values, 2) if split.values[pair[0]] != split.values[pair[1]]]
    found = [overlap(split.streams[a], split.streams[b]) for a, b in pairs[:MOST_PAIRS]]
    shares = [each.share for each in found if each is not None and each.share > 0]
    return f", and share up to {100 * max(shares):.0f} % of their samples" if shares else " and overlap"
