"""Memory in use on a device grows from step to step.

What it means
    Tensors outlive the step that made them: losses kept with their graphs, activations in a list, a growing cache of
    keys and values. The rank will run out of memory some steps from now, however large its device is.

How it is found
    What the allocator has in use at the end of each step. After the first fifth of the run the slope of Theil and Sen
    has to be steady in all quarters and above the noise.

What to do
    Keep ``loss.item()`` or ``loss.detach()`` instead of ``loss``; take a memory snapshot
    (``torch.cuda.memory._dump_snapshot``) in two steps and compare what is alive.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.memory import MIB, device_leaks, leaking
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD402"
NAME = "memory-growth"
AT_LEAST = 16 * MIB
MOST_TOLD = 8
SHARE = 0.01
"""What is in use at the end of a step is nearly constant in a healthy run."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the ranks whose device memory grows without end."""
    leaks = device_leaks(run, at_least=AT_LEAST, share=SHARE)
    if not leaks:
        return
    ranks = tuple(leak.rank for leak in leaks)
    first, second = leaking(leaks, "the memory of the device", len(run.ranks))
    yield Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING if any(leak.matters for leak in leaks) else Severity.INFO,
        summary=f"the device memory of {named(ranks)} {first}\n{second}",
        culprits=ranks if len(leaks) < len(run.ranks) else (),
        step=min(leak.growth.first_step for leak in leaks),
        evidence=(
            *(leak.in_words() for leak in leaks[:MOST_TOLD]),
            data_in_words(run),
        ),
        action=(
            f"look on {named(ranks)} for tensors that outlive their step: losses without .detach(), lists of outputs",
            "compare two memory snapshots that are some steps apart: torch.cuda.memory._dump_snapshot()",
        ),
    )
