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

from distdiag.analyzers._wording import counted, named, seconds
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.slowness.judged import judge
from distdiag.analyzers.slowness.pauses import pauses_in
from distdiag.analyzers.slowness.telling import cost
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD210"
NAME = "recompilation"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per role that loses its time to compilations."""
    for grid in judge(run).roles:
        pauses = pauses_in(grid, "compile_ns")
        if pauses is None:
            continue
        who = named(pauses.ranks) if pauses.ranks else "all ranks"
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=f"{who} compiled the model anew in {pauses.paused_steps} of {pauses.steps} steps, "
            f"{seconds(pauses.lost_ns / pauses.paused_steps)} at a time\n{cost(pauses)}",
            culprits=pauses.ranks,
            victims=tuple(rank for rank in grid.ranks if pauses.ranks and rank not in pauses.ranks),
            step=pauses.worst_step,
            cause="recompilation",
            evidence=(
                f"{pauses.paused_steps} of {counted(pauses.steps, 'step')} have a compilation, the longest of "
                f"{seconds(pauses.longest_ns)}",
                data_in_words(run),
            ),
            action=(
                "run with TORCH_LOGS=recompiles: it names the guard that failed",
                "mark the dimension that changes as dynamic (torch._dynamo.mark_dynamic), or pad to a few lengths",
            ),
        )
