"""A checkpoint was not written to its end, or a part of it is gone.

What it means
    The checkpoint cannot be loaded, or not all of it. A run that is to continue from it will fail, or will silently
    continue from an older one.

How it is found
    In the logs: a rank began to save and ended before the save did, or the save failed. On disk: ``distdiag
    checkpoint verify`` found that a file, or a part of one, is not there, and left that note in the checkpoint. A save
    that may still be going on is not reported.

What to do
    Continue from the checkpoint before it, and verify that one first. Look at what ended the save: a full disk, a
    time limit, a rank that died. Do not delete old checkpoints before a new one is verified.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from distdiag.analyzers._wording import counted, named, verb
from distdiag.analyzers.investigation.lives import End, lives_of
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run
from distdiag.run.saved import SAVES

CODE = "DD701"
NAME = "checkpoint-incomplete"
VERIFY = "distdiag checkpoint verify {directory}"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per checkpoint that was not saved, or that verification found to be incomplete."""
    verified = run.checkpoints[run.checkpoints["outcome"] == NAME]
    for row in verified.itertuples():
        yield of_verification(row, CODE, NAME)
    saves = run.phases[run.phases["phase"].isin(SAVES) & run.phases["directory"].notna()]
    if saves.empty:
        return
    done = set(verified["directory"])
    for directory, phases in saves.groupby("directory"):
        finding = _unfinished(run, str(directory), phases)
        if finding is not None and directory not in done:
            yield finding


def of_verification(row: Any, code: str, name: str) -> Finding:
    """Return the finding that a verification noted in a checkpoint."""
    return Finding(
        code=code,
        name=name,
        severity=Severity.ERROR,
        summary=f"checkpoint {row.directory}, saved in step {row.step}, is damaged\n{row.summary}.",
        step=int(row.step),
        evidence=(f"distdiag checkpoint verify found: {row.summary}",),
        action=(
            f"run {VERIFY.format(directory=row.directory)}: it names the checkpoint to use instead",
            "do not delete older checkpoints before that one is verified",
        ),
    )


def _unfinished(run: Run, directory: str, phases: pd.DataFrame) -> Finding | None:
    """Return that the newest save to a folder failed, or was still going on when its rank ended."""
    begun = phases[phases["edge"] == "begin"].sort_values("time_ns").drop_duplicates("rank", keep="last")
    ended = phases[phases["edge"] == "end"].set_index(["rank", "number"])["failed"]
    keys = list(zip(begun["rank"].tolist(), begun["number"].tolist(), strict=True))
    failed = [rank for rank, number in keys if bool(ended.get((rank, number), False))]
    never = [rank for rank, number in keys if (rank, number) not in ended.index]
    if never:
        lives = lives_of(run)
        never = [
            rank for rank in never if rank in lives and lives[rank].end not in (End.SILENT, End.RUNNING, End.UNTOLD)
        ]
    if not failed and not never:
        return None
    step = int(begun["step"].max())
    ranks = never or failed
    how = "ended before its save did" if never else verb(ranks, "its save failed", "their save failed")
    done = [rank for rank, number in keys if rank not in failed and (rank, number) in ended.index]
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=f"checkpoint {directory} is not whole: {named(ranks)} began to save it in step {step}, and {how}",
        culprits=tuple(sorted(never)),
        step=step,
        confidence=Confidence.HIGH,
        evidence=(
            f"{counted(len(keys), 'rank')} began the save; {counted(len(done), 'rank')} ended it",
            *((f"it failed on {named(failed)}",) if failed else ()),
        ),
        action=(
            "continue from the checkpoint before it, and verify that one first",
            f"run {VERIFY.format(directory=directory)}: it says what is there",
        ),
    )
