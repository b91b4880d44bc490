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

from distdiag.analyzers._wording import named, seconds
from distdiag.analyzers.slowness.pauses import Pauses
from distdiag.analyzers.slowness.telling import of_pauses
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD211"
NAME = "checkpoint-stall"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per role that loses its time to checkpoints."""
    yield from of_pauses(
        run,
        "checkpoint_ns",
        code=CODE,
        name=NAME,
        what="a checkpoint",
        summary=_summary,
        cause=lambda pauses: "one-rank-writes" if pauses.ranks else "all-ranks-write",
        action=_action,
    )


def _action(pauses: Pauses) -> tuple[str, ...]:
    sharded = "write sharded checkpoints with torch.distributed.checkpoint: each rank writes its part"
    return (
        *((sharded,) if pauses.ranks else ()),
        "write in the background: torch.distributed.checkpoint.async_save copies, and training goes on",
        "save less often, or to a faster file system first",
    )


def _summary(pauses: Pauses) -> str:
    each = seconds(pauses.lost_ns / pauses.paused_steps)
    if pauses.ranks:
        subject = f"everyone waits {each} at a time for the checkpoints of {named(pauses.ranks)},"
    else:
        subject = f"training stands still {each} at a time for checkpoints,"
    return f"{subject} in {pauses.paused_steps} of {pauses.steps} steps"
