"""Training stands still while checkpoints are written.

What it means
    A save that is not handed to the background stops the steps until it is written. Where one rank writes the whole
    model, all others wait for it in their next collective, and their time is lost as well.

How it is found
    Phases whose name tells of a checkpoint or of saving (``with distdiag.phase("save checkpoint"):``; saves by
    ``torch.save`` and ``torch.distributed.checkpoint`` are seen by themselves). It takes three of them beside the
    warm-up, and at least 5 % of the time of the job.

What to do
    Write sharded checkpoints (``torch.distributed.checkpoint``), so that every rank writes its part; write them in
    the background (``async_save``); save less often; write to a faster place first and copy from there.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, named, seconds
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.slowness.judged import judge
from distdiag.analyzers.slowness.pauses import Pauses, pauses_in
from distdiag.analyzers.slowness.telling import cost
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD211"
NAME = "checkpoint-stall"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per role that loses its time to checkpoints."""
    for grid in judge(run).roles:
        pauses = pauses_in(grid, "checkpoint_ns")
        if pauses is not None:
            yield Finding(
                code=CODE,
                name=NAME,
                severity=Severity.WARNING,
                summary=_summary(pauses),
                culprits=pauses.ranks,
                victims=tuple(rank for rank in grid.ranks if pauses.ranks and rank not in pauses.ranks),
                step=pauses.worst_step,
                cause="one-rank-writes" if pauses.ranks else "all-ranks-write",
                evidence=(
                    f"{pauses.paused_steps} of {counted(pauses.steps, 'step')} have a checkpoint, of up to "
                    f"{seconds(pauses.longest_ns)}",
                    data_in_words(run),
                ),
                action=(
                    *(
                        ("write sharded checkpoints with torch.distributed.checkpoint: each rank writes its part",)
                        if pauses.ranks
                        else ()
                    ),
                    "write in the background: torch.distributed.checkpoint.async_save copies, and training goes on",
                    "save less often, or to a faster file system first",
                ),
            )


def _summary(pauses: Pauses) -> str:
    each = seconds(pauses.lost_ns / pauses.paused_steps)
    if pauses.ranks:
        subject = f"everyone waits {each} at a time for the checkpoints of {named(pauses.ranks)},"
    else:
        subject = f"training stands still {each} at a time for checkpoints,"
    return f"{subject} in {pauses.paused_steps} of {pauses.steps} steps\n{cost(pauses)}"
