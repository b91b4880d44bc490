"""Ranks issued different operations with equal payload as one call, or reduced it in different ways.

What it means
    A collective works only if all members of the group issue the same operation. One rank issued another one of
    the same size in its place: a branch on the rank, or on local data, chose a different function. Or the call is the
    same and one rank asked for a maximum where the others asked for a sum: nothing fails, and the result is wrong.

How it is found
    At one sequence number of a group the operations differ, their element type and count are equal, and neither
    operation occurs elsewhere in the other side's stream, so that nothing was left out or added. Kinds of reductions
    are compared call by call, where they were read: in the first two steps of a line at each call, later at each where
    the line had several kinds before, else at one call of 256. Kinds that show calls of one line and size to be out of
    order are a sequence-divergence.

What to do
    Make both branches issue the same operation.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Disagreement, Incident
from distdiag.analyzers.investigation.issued import in_group
from distdiag.analyzers.investigation.reductions import ReductionMismatch
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
        elif isinstance(incident.basis, ReductionMismatch):
            yield incident.finding(CODE, _kinds(incident, incident.basis), _reduce_alike(incident))


def _summary(incident: Incident, disagreement: Disagreement) -> str:
    d = disagreement.divergence
    made, expected = d.made.op if d.made else "nothing", d.expected.op if d.expected else "nothing"
    return (
        f"{named(d.odd)} issued {made} where {named(d.others)} issued {expected}: "
        f"{incident.number} of {in_group(incident.group or '')}{incident.at_step}\n"
        f"{both_sides(incident, disagreement)}."
    )


def _kinds(incident: Incident, mismatch: ReductionMismatch) -> str:
    ranks_of: dict[str, list[int]] = {}
    for rank, kind in sorted(mismatch.kinds.items(), key=lambda each: (each[0] not in mismatch.odd, each[0])):
        ranks_of.setdefault(kind, []).append(rank)
    sides = [f"{named(ranks)} {verb(ranks, 'asks', 'ask')} for {kind}" for kind, ranks in ranks_of.items()]
    blame = "" if mismatch.odd else "; without a majority nobody is blamed"
    return (
        f"{sides[0]} in {incident.operation}{incident.at_step}, {', '.join(sides[1:])}\n"
        f"No backend notices: every rank combines in its own way, and the results are wrong{blame}."
    )


def _reduce_alike(incident: Incident) -> tuple[str, ...]:
    lines = " and ".join(sorted(set(incident.sites.values()))) or "that call"
    return (f"make every rank reduce at {lines} in the same way", "throw away what was computed since: it is wrong")


def _action(incident: Incident) -> tuple[str, ...]:
    lines = sorted(set(incident.sites.values()))
    first = f"make {' and '.join(lines)} the same operation on every rank" if lines else "compare both branches"
    elsewhere = {line for rank, line in incident.sites.items() if rank not in incident.culprits}
    if len(lines) != 2 or len(elsewhere) != 1:
        return (first,)
    skips = f"see why {named(incident.culprits)} does not come to {elsewhere.pop()}"
    return (first, f"or, if these two lines are no branches of one condition, {skips}")
