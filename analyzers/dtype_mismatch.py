"""Ranks passed tensors of different element types to one call.

What it means
    A collective reads every rank's buffer as the same type. Here the types differ: sizes in bytes do not match, or sums
    are silently wrong.

How it is found
    At one sequence number of a group the same operation comes from the same call site on all ranks, and the
    element type differs. Sends and receives are matched in order between the same two ranks, where recording saw all
    of them. Types that differ on purpose, as where floats are received as bytes, are left alone: it counts where both
    are of floating point, or where messages between the same lines had one type before.

What to do
    Cast before the call; look for autocast, a checkpoint or a default type that differs on that rank.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.fits import Misfit
from distdiag.analyzers.investigation.incident import Disagreement, Incident
from distdiag.analyzers.investigation.telling import both_sides
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD308"
NAME = "dtype-mismatch"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first call whose element type differs."""
    for incident in investigate(run).named(NAME):
        yield incident.finding(CODE, _summary(incident), _action(incident))


def _summary(incident: Incident) -> str:
    if isinstance(incident.basis, Misfit):
        basis = incident.basis
        return f"{basis.said}{incident.at_step}\nThe bytes are read as what they are not; {basis.before}."
    if not isinstance(incident.basis, Disagreement):
        return incident.operation
    d = incident.basis.divergence
    made, expected = (call.dtype if call is not None else "nothing" for call in (d.made, d.expected))
    return (
        f"{named(d.odd)} passed {made} to {incident.operation}{incident.at_step}, {named(d.others)} passed {expected}\n"
        f"{both_sides(incident, incident.basis)}."
    )


def _action(incident: Incident) -> tuple[str, ...]:
    who = named(incident.culprits) if incident.culprits else "one of them"
    if isinstance(incident.basis, Misfit):
        lines = " and ".join(sorted(set(incident.sites.values())))
        return (f"let both sides of {lines} use one element type: autocast, a checkpoint, the default dtype",)
    site = incident.site or "that call"
    return (f"see where {who} gets another element type for {site}: autocast, a checkpoint, the default dtype",)
