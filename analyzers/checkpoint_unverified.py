"""The newest checkpoint was never verified.

What it means
    Nobody knows whether the run could continue from it. Most damage to checkpoints is found when they are needed.

How it is found
    The run saved it, it can be seen from here, and ``distdiag checkpoint verify`` has left no note in it since it was
    saved. Where its folder cannot be seen, nothing is said.

What to do
    Run ``distdiag checkpoint verify`` after each save, best from the job that copies it away; ``distdiag checkpoint
    drill`` now and then, which loads it at other sizes of the world.
"""

from collections.abc import Iterator

from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD703"
NAME = "checkpoint-unverified"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding if the newest checkpoint that can be seen was not verified."""
    if run.checkpoints.empty:
        return
    newest = run.checkpoints.iloc[-1]
    if not newest["visible"] or newest["outcome"] is not None:
        return
    directory, saved = str(newest["directory"]), len(run.checkpoints)
    verified = int(run.checkpoints["outcome"].notna().sum())
    yield Finding(
        code=CODE,
        name=NAME,
        severity=Severity.INFO,
        summary=f"checkpoint {directory}, the newest of {saved}, was not verified since it was saved in step "
        f"{int(newest['step'])}",
        step=int(newest["step"]),
        evidence=(f"{verified} of the newest checkpoints of this run were verified",),
        action=(f"run distdiag checkpoint verify {directory}",),
    )
