"""One pipeline stage takes longer than the others.

What it means
    A pipeline runs at the pace of its slowest stage; all others wait for it at every microbatch. Mostly it is the
    last one, which computes the loss and the projection onto the vocabulary beside its layers.

How it is found
    From tables of operations the steps are simulated again with the operations of one stage at their usual time.
    The last stage is named where that takes away at least half of what is lost and a microbatch takes it longer
    than the others; else the stage that explains the most. A single slow worker explains its stage first.

What to do
    Move layers from that stage to the others, count the loss and the embeddings as layers when you divide them.
"""

from collections.abc import Iterator

from distdiag.analyzers.performance import accusations
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD204"
NAME = "stage-imbalance"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield what is found of a pipeline stage that holds the others up."""
    yield from accusations.heavy_stage(run, CODE, NAME)
