"""Ranks use several groups in different orders and wait for one another in a circle.

What it means
    One rank waits in a call on group A for ranks that wait in a call on group B for the first. Each call by itself
    is right; the order of the groups is not the same on all ranks.

How it is found
    Every operation that did not end points to the members that did not come. The arrows form a circle over several
    groups. The ranks of the operation with fewest waiters are named; at a tie nobody is.

What to do
    Use the groups in one order on all ranks: sort them by name before a loop over them, and never loop over a set.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Incident
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD312"
NAME = "order-deadlock"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the smallest circle of collectives."""
    for incident in investigate(run).named(NAME):
        yield incident.finding(CODE, _summary(incident), _action(incident))


def _summary(incident: Incident) -> str:
    ranks = sorted({*incident.culprits, *incident.victims})
    who = f"{named(incident.culprits)} came first to {incident.operation}" if incident.culprits else named(ranks)
    if not incident.culprits:
        return f"{who} wait for one another in collectives of different groups{incident.at_step}\n{_circle(incident)}."
    return f"{who}, the others to another group: they wait for one another{incident.at_step}\n{_circle(incident)}."


def _circle(incident: Incident) -> str:
    return "; ".join(incident.evidence[: len(incident.evidence) - 1][:4])


def _action(incident: Incident) -> tuple[str, ...]:
    lines = " and ".join(sorted(set(incident.sites.values())))
    if len(set(incident.sites.values())) != 2:
        return (f"use the groups in one order on all ranks, see {lines}" if lines else "use the groups in one order",)
    return (
        f"use the groups in one order on all ranks, see {lines}",
        "or, where these two lines belong to no one order, see which condition brings some ranks to one of them alone",
    )
