"""Training stands still while checkpoints are written.

What it means
    A save that is not handed to the background stops the steps until it is written. Where one rank writes the whole
    model, all others wait for it in their next collective, and their time is lost as well.

How it is found
    Phases whose name tells of a checkpoint or of saving (``with distdiag.phase("save checkpoint"):``; saves by
    ``torch.save`` and ``torch.distributed.checkpoint`` are seen by themselves). It takes three of them beside the
    warm-up, and at least 5 % of the time of the job. Where one rank writes and the others wait, it says what each
    side wrote. Where all write, one of them much longer and not twice as much, its file system is the slow one.

What to do
    Write sharded checkpoints (``torch.distributed.checkpoint``), so that every rank writes its part; write them in
    the background (``async_save``); save less often; write to a faster place first and copy from there.
"""

from collections.abc import Iterator

import pandas as pd

from distdiag.analyzers._wording import counted, named, seconds, verb
from distdiag.analyzers.slowness.pauses import LEAST_PAUSE_NS, Pauses
from distdiag.analyzers.slowness.telling import of_pauses
from distdiag.analyzers.training.memory import size
from distdiag.findings import Finding
from distdiag.run import Run
from distdiag.run.saved import SAVES

CODE = "DD211"
NAME = "checkpoint-stall"
ONE_SLOW = "slow-writer"
MUCH_MORE = 2.0
"""Times the bytes of the others, for these to be the reason that a rank writes longer."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per role that loses its time to checkpoints."""
    yield from of_pauses(
        run,
        "checkpoint_ns",
        code=CODE,
        name=NAME,
        what=lambda _: "a checkpoint",
        summary=lambda pauses: _summary(pauses, _cause(run, pauses)),
        cause=lambda pauses: _cause(run, pauses),
        action=lambda pauses: _action(pauses, _cause(run, pauses)),
        also=lambda pauses: _written(run, pauses),
    )


def _cause(run: Run, pauses: Pauses) -> str:
    if not pauses.ranks:
        return "all-ranks-write"
    wrote = _saves(run).groupby("rank")["bytes"].sum().astype("float64")
    guilty = wrote.index.isin(pauses.ranks)
    more = wrote[guilty].median() > MUCH_MORE * wrote[~guilty].median()
    return ONE_SLOW if pauses.others_ns >= LEAST_PAUSE_NS and not more else "one-rank-writes"


def _saves(run: Run) -> pd.DataFrame:
    return run.phases[run.phases["phase"].isin(SAVES) & (run.phases["edge"] == "end") & run.phases["bytes"].notna()]


def _written(run: Run, pauses: Pauses) -> tuple[str, ...]:
    """Tell what each side wrote, where one writes and the others wait."""
    saves = _saves(run)
    wrote = saves.groupby("rank")["bytes"].sum().astype("float64")
    own = float(wrote[wrote.index.isin(pauses.ranks)].sum())
    others = float(wrote[~wrote.index.isin(pauses.ranks)].sum())
    if not pauses.ranks or not own:
        return ()
    rest = f"the others {size(others)}" if others else "the others nothing"
    return (f"{named(pauses.ranks)} wrote {size(own)} in {counted(len(saves), 'save')}, {rest}",)


def _action(pauses: Pauses, cause: str) -> tuple[str, ...]:
    sharded = "write sharded checkpoints with torch.distributed.checkpoint: each rank writes its part"
    slow = f"look at where {named(pauses.ranks)} {verb(pauses.ranks, 'writes', 'write')}: mount, disk, other writers"
    return (
        *((slow if cause == ONE_SLOW else sharded,) if pauses.ranks else ()),
        "write in the background: torch.distributed.checkpoint.async_save copies, and training goes on",
        "save less often, or to a faster file system first",
    )


def _summary(pauses: Pauses, cause: str) -> str:
    each = seconds(pauses.lost_ns / pauses.paused_steps)
    if cause == ONE_SLOW:
        subject = f"everyone waits {each} at a time for {named(pauses.ranks)} to write a checkpoint, which takes the "
        subject += f"others {seconds(pauses.others_ns)},"
    elif pauses.ranks:
        subject = f"everyone waits {each} at a time for the checkpoints of {named(pauses.ranks)},"
    else:
        subject = f"training stands still {each} at a time for checkpoints,"
    return f"{subject} in {pauses.paused_steps} of {pauses.steps} steps"
