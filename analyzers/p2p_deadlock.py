"""Ranks wait for one another in sends and receives.

What it means
    Each rank of a circle waits for a message, or for its message to be taken, from the next one: two ranks that
    both send first, or a pipeline in which every stage talks to its neighbours in the same order.

How it is found
    Sends and receives are matched in order between the same two ranks. Those that did not end point to the rank
    that did not post its side, and the arrows form a circle.

What to do
    Let neighbours take turns, even ranks sending first and odd ranks receiving first, or post both sides at once
    with ``batch_isend_irecv``.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Circle, Incident
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD314"
NAME = "p2p-deadlock"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the smallest circle of messages."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, Circle):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(incident))


def _summary(incident: Incident, circle: Circle) -> str:
    steps = incident.evidence[: len(circle.waits)]
    if not incident.culprits:
        ranks = sorted({rank for wait in circle.waits for rank in wait.waiters})
        return f"all of {named(ranks)} are in {incident.op}, so some of them wait for one another\n{steps[0]}."
    return (
        f"{named(incident.culprits)} wait for one another in {incident.op} and the like{incident.at_step}\n"
        f"{'; '.join(steps)}."
    )


def _action(incident: Incident) -> tuple[str, ...]:
    lines = " and ".join(sorted(set(incident.sites.values())))
    return (
        f"let even ranks send first and odd ranks receive first at {lines or 'these calls'}, or use batch_isend_irecv",
    )
