"""Training stands still while checkpoints are written.

What it means
    A save that is not handed to the background stops the steps until it is written. Where one rank writes the whole
    model, all others wait for it in their next collective, and their time is lost as well.

How it is found
    Phases whose name tells of a checkpoint or of saving (``with distdiag.phase("save checkpoint"):``; saves by
    ``torch.save`` and ``torch.distributed.checkpoint`` are seen by themselves). It takes three of them beside the
    warm-up, and at least 5 % of the time of the job. Where one rank writes and the others wait, it says what each
    side wrote.

What to do
    Write sharded checkpoints (``torch.distributed.checkpoint``), so that every rank writes its part; write them in
    the background (``async_save``); save less often; write to a faster place first and copy from there.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, named, seconds
from distdiag.analyzers.slowness.pauses import Pauses
from distdiag.analyzers.slowness.telling import of_pauses
from distdiag.analyzers.training.memory import size
from distdiag.findings import Finding
from distdiag.run import Run
from distdiag.run.saved import SAVES

CODE = "DD211"
NAME = "checkpoint-stall"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per role that loses its time to checkpoints."""
    yield from of_pauses(
        run,
        "checkpoint_ns",
        code=CODE,
        name=NAME,
        what=lambda _: "a checkpoint",
        summary=_summary,
        cause=lambda pauses: "one-rank-writes" if pauses.ranks else "all-ranks-write",
        action=_action,
        also=lambda pauses: _written(run, pauses),
    )


def _written(run: Run, pauses: Pauses) -> tuple[str, ...]:
    """Tell what each side wrote, where one writes and the others wait."""
    saves = run.phases[run.phases["phase"].isin(SAVES) & (run.phases["edge"] == "end") & run.phases["bytes"].notna()]
    wrote = saves.groupby("rank")["bytes"].sum().astype("float64")
    own = float(wrote[wrote.index.isin(pauses.ranks)].sum())
    others = float(wrote[~wrote.index.isin(pauses.ranks)].sum())
    if not pauses.ranks or not own:
        return ()
    rest = f"the others {size(others)}" if others else "the others nothing"
    return (f"{named(pauses.ranks)} wrote {size(own)} in {counted(len(saves), 'save')}, {rest}",)


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
