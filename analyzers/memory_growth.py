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

from distdiag.analyzers.training.memory import MIB, device_leaks, of_leaks
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD402"
NAME = "memory-growth"
AT_LEAST = 16 * MIB
SHARE = 0.01
"""What is in use at the end of a step is nearly constant in a healthy run."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the ranks whose device memory grows without end."""
    yield from of_leaks(
        run,
        device_leaks(run, at_least=AT_LEAST, share=SHARE),
        code=CODE,
        name=NAME,
        where="device",
        look_for="tensors that outlive their step: losses without .detach(), lists of outputs",
        compare="compare two memory snapshots that are some steps apart: torch.cuda.memory._dump_snapshot()",
    )
