"""Ranks named different roots for one call.

What it means
    A broadcast, reduce, gather or scatter has one root. Here the ranks do not agree which rank it is, so that each side
    waits for a message that nobody sends.

How it is found
    At one sequence number of a group the same operation comes from the same call site on all ranks, and the
    root differs.

What to do
    Compute the root from something that all ranks share. Roots are global ranks, also in subgroups.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Disagreement, Incident
from distdiag.analyzers.investigation.telling import both_sides
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD310"
NAME = "root-mismatch"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first call whose root differs."""
    for incident in investigate(run).named(NAME):
        yield incident.finding(CODE, _summary(incident), _action(incident))


def _summary(incident: Incident) -> str:
    if not isinstance(incident.basis, Disagreement):
        return incident.operation
    d = incident.basis.divergence
    made, expected = (call.root if call is not None else None for call in (d.made, d.expected))
    return (
        f"{named(d.odd)} took rank {made} for the root of {incident.operation}{incident.at_step}, "
        f"{named(d.others)} rank {expected}\n"
        f"{both_sides(incident, incident.basis)}."
    )


def _action(incident: Incident) -> tuple[str, ...]:
    site = incident.site or "that call"
    return (f"compute the root at {site} from something that all ranks share; it is a global rank, also in subgroups",)
