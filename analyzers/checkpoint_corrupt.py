"""A checkpoint holds something else than was saved.

What it means
    All of it is there, and some of it is not what the save wrote: bytes changed, files were swapped, shards or
    metadata of another save lie among its own. torch loads much of this without a word, and the model continues from
    wrong weights.

How it is found
    ``distdiag checkpoint verify`` compared every byte with the checksums in the files and with the hashes that the
    save left, and noted the outcome in the checkpoint. A note about a checkpoint that was overwritten since does not
    count.

What to do
    Continue from the checkpoint before it, and verify that one first. Find out what changed it: a copy that mixed two
    checkpoints, a disk, a network file system.
"""

from collections.abc import Iterator

from distdiag.analyzers.checkpoint_incomplete import of_verification
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD702"
NAME = "checkpoint-corrupt"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per checkpoint that verification found to be corrupt."""
    for row in run.checkpoints[run.checkpoints["outcome"] == NAME].itertuples():
        yield of_verification(row, CODE, NAME)
