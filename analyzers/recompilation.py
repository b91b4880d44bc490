"""The model is compiled again and again.

What it means
    ``torch.compile`` makes code for the shapes and values it has seen. Where they go on changing (lengths that differ
    from batch to batch, Python numbers that count up) it compiles anew in the middle of training, for seconds, and
    the other ranks wait.

How it is found
    Each compilation is recorded. Counted is what those after the warm-up make a rank later than the others, or, where
    all ranks compile together, what they take: three or more on a rank, and at least 5 % of the time of the job.

What to do
    ``TORCH_LOGS=recompiles`` tells which guard failed. Mark dimensions that change as dynamic
    (``torch._dynamo.mark_dynamic``, or ``dynamic=True``), or pad to a few fixed lengths.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named, seconds
from distdiag.analyzers.slowness.pauses import Pauses
from distdiag.analyzers.slowness.telling import of_pauses
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD210"
NAME = "recompilation"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per role that loses its time to compilations."""
    yield from of_pauses(
        run,
        "compile_ns",
        code=CODE,
        name=NAME,
        what=lambda _: "a compilation",
        summary=_summary,
        cause=lambda _: NAME,
        action=lambda _: (
            "run with TORCH_LOGS=recompiles: it names the guard that failed",
            "mark the dimension that changes as dynamic (torch._dynamo.mark_dynamic), or pad to a few lengths",
        ),
    )


def _summary(pauses: Pauses) -> str:
    who = named(pauses.ranks) if pauses.ranks else "all ranks"
    each = seconds(pauses.lost_ns / pauses.paused_steps)
    return f"{who} compiled the model anew in {pauses.paused_steps} of {pauses.steps} steps, {each} at a time"
