"""Sequences of different lengths make ranks wait for one another.

What it means
    The time of a microbatch grows with the lengths of its sequences, and with their squares. Where data-parallel
    ranks get different lengths in a step, all wait for the one with the longest; no device is slow.

How it is found
    From tables of operations, without lengths: the forward and the backward pass of a worker's microbatches vary,
    and by the same amount (correlation of at least 0.95 within a worker), as they do when the microbatch is the
    reason and not the device.

What to do
    Balance the tokens, and the tokens squared, that each data-parallel rank gets in a step.
"""

from collections.abc import Iterator

from distdiag.analyzers.performance import accusations
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD203"
NAME = "token-imbalance"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield what is found of microbatches that take uneven times."""
    yield from accusations.uneven_sequences(run, CODE, NAME)
