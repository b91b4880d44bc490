"""Garbage collections pause a rank, and all others wait until it goes on.

What it means
    Python's collector stops the process while it goes through all objects. With a large heap that takes tenths of a
    second, on each rank at another moment, and every pause of one rank is a wait of all.

How it is found
    Each collection of a millisecond or more is recorded. Counted is what collections of at least 5 ms make a rank
    later than the others in the same step, or, where all ranks collect in the same steps, what that takes; it has to
    happen to a rank three times beside the warm-up, and to cost the job at least 5 % of its time. Collections inside a
    compilation are the compilation's.

What to do
    Call ``gc.freeze()`` after the model and the data are loaded, so that the collector leaves them alone; turn
    automatic collections off and call ``gc.collect()`` every few hundred steps on all ranks in the same step; hold
    large data in tensors or arrays instead of millions of Python objects.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named, seconds, verb
from distdiag.analyzers.performance import accusations
from distdiag.analyzers.slowness.pauses import Pauses
from distdiag.analyzers.slowness.telling import of_pauses
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD209"
NAME = "gc-pause"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per role whose ranks lose time to collections."""
    yield from of_pauses(
        run,
        "gc_ns",
        code=CODE,
        name=NAME,
        what=lambda pauses: "a collection that others wait for" if pauses.ranks else "collections on all ranks",
        summary=_summary,
        cause=lambda _: "garbage-collection",
        action=_action,
    )
    yield from accusations.collections(run, CODE, NAME)


def _action(pauses: Pauses) -> tuple[str, ...]:
    frozen = "call gc.freeze() when model and data are loaded: the collector leaves them alone then"
    if not pauses.ranks:
        return (frozen, "collect less often: gc.disable(), and gc.collect() on all ranks every few hundred steps")
    return (
        frozen,
        "call gc.disable(), and gc.collect() every few hundred steps, on all ranks in the same step",
    )


def _summary(pauses: Pauses) -> str:
    if pauses.ranks:
        who = f"garbage collections of {named(pauses.ranks)}: {verb(pauses.ranks, 'it pauses', 'they pause')}"
        subject = f"everyone waits {seconds(pauses.lost_ns / pauses.paused_steps)} at a time for {who}"
    else:
        subject = f"garbage collections pause all ranks {seconds(pauses.lost_ns / pauses.paused_steps)} at a time,"
    return f"{subject} in {pauses.paused_steps} of {pauses.steps} steps"
