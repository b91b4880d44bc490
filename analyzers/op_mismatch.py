"""Ranks issued different operations with equal payload as one call.

What it means
    A collective works only if all members of the group issue the same operation. One rank issued another one of
    the same size in its place: a branch on the rank, or on local data, chose a different function.

How it is found
    At one sequence number of a group the operations differ, their element type and count are equal, and neither
    operation occurs elsewhere in the other side's stream, so that nothing was left out or added.

What to do
    Make both branches issue the same operation.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Disagreement, Incident
from distdiag.analyzers.investigation.issued import in_group
from distdiag.analyzers.investigation.telling import both_sides
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD306"
NAME = "op-mismatch"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first call whose operation differs."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, Disagreement):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(incident))


def _summary(incident: Incident, disagreement: Disagreement) -> str:
    d = disagreement.divergence
    made, expected = d.made.op if d.made else "nothing", d.expected.op if d.expected else "nothing"
    return (
        f"{named(d.odd)} issued {made} where {named(d.others)} issued {expected}: "
        f"{incident.number} of {in_group(incident.group or '')}{incident.at_step}\n"
        f"{both_sides(incident, disagreement)}."
    )


def _action(incident: Incident) -> tuple[str, ...]:
    lines = sorted(set(incident.sites.values()))
    return (f"make {' and '.join(lines)} the same operation on every rank" if lines else "compare both branches",)
