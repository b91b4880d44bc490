"""The memory of a process grows from step to step.

What it means
    Something keeps what each step makes: a list of losses that still hold their graphs, a cache without a bound, a data
    loader that copies on every access. When the limit of the control group or of the host is reached the kernel kills
    the process, without a message, and the other ranks wait for it.

How it is found
    Resident memory without what is shared with files and other processes, data loader workers included, is sampled at
    steps. After the first fifth of the run the slope of Theil and Sen has to be steady in all quarters and above the
    noise. Growth that would not matter in 50 times the steps seen so far is only mentioned.

What to do
    Run ``python -X tracemalloc`` or memray on the rank that is named. Look for ``loss`` kept without ``.item()``, for
    lists and dictionaries that are appended to in the loop, and for ``gc.disable()``.
"""

from collections.abc import Iterator

from distdiag.analyzers.training.memory import MIB, host_leaks, of_leaks
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD405"
NAME = "host-memory-growth"
AT_LEAST = 16 * MIB
"""Allocators, caches of compiled code and logs grow by less without a leak."""
SHARE = 0.05


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the ranks whose host memory grows without end."""
    yield from of_leaks(
        run,
        host_leaks(run, at_least=AT_LEAST, share=SHARE),
        code=CODE,
        name=NAME,
        where="host",
        look_for="what the loop keeps: losses without .item(), metrics, samples, caches",
        compare="run one rank under memray or python -X tracemalloc; compare two snapshots that are some steps apart",
    )
