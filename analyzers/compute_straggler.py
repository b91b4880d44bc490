"""One rank computes slower than its peers.

What it means
    Every collective and every pipeline step waits for the slowest rank, so one slow rank sets the pace of the
    whole job.

How it is found
    From tables of operations the steps are simulated again with the slowest workers at the usual pace. Where that
    takes away at least half of what is lost, and where the worker needs at least 1.1 times as long for a microbatch
    as the others of its pipeline stage, it is named. Where it is the only worker of its stage nobody is.

What to do
    Run ``nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE`` on the host of that rank, and look for other processes
    there. If nothing is wrong, run the rank on another host and compare.
"""

from collections.abc import Iterator

from distdiag.analyzers.performance import accusations
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD201"
NAME = "compute-straggler"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield what is found of ranks that compute slower than their peers."""
    yield from accusations.slow_workers(run, CODE, NAME)
