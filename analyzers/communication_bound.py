"""Most of a step is communication that no computing hides, and no rank is to blame.

What it means
    Every rank arrives in time, and the transfers themselves take long: the job moves too many bytes for its links, or
    it moves them while nothing computes. More or faster devices would wait just as long.

How it is found
    In profiler traces of all ranks over at least five steps: communication while no compute kernel runs, less what a
    rank waited for later ones (what its kernel of a collective takes longer than the shortest of all ranks), is at
    least 40 % of the window and more than computing. With traces of some ranks only, waiting and transferring look
    alike, so nobody is told.

What to do
    Let transfers run beside computing: DDP buckets that are ready early, FSDP's prefetch, asynchronous collectives.
    Then send less: accumulate gradients under ``no_sync()``, reduce in bf16, shard within a host. If the bytes are
    few for the time they take, measure the links with nccl-tests.
"""

from collections.abc import Iterator

from distdiag.analyzers.performance import traced
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD206"
NAME = "communication-bound"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for a job whose steps are mostly transfers."""
    yield from traced.exposed_transfers(run, CODE, NAME)
