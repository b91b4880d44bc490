"""Some ranks had more batches than others.

What it means
    A rank whose data ended left the loop, while the others began another pass and wait in its collectives.

How it is found
    The calls go apart where one side begins a forward that the other never begins, and the numbers of forwards or
    of batches taken differ.

What to do
    Give every rank the same number of batches: ``drop_last=True``, a sampler that pads, or a limit agreed by
    all_reduce; or train in ``torch.distributed.algorithms.join.Join``.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.circles import MOST_TOLD
from distdiag.analyzers.investigation.incident import Circle, Disagreement, Incident, Surplus
from distdiag.analyzers.investigation.telling import both_sides, surplus
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD602"
NAME = "uneven-batches"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first pass that not all ranks made."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, Surplus):
            yield incident.finding(CODE, surplus(incident, incident.basis), _action(incident))
        elif isinstance(incident.basis, Disagreement):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(incident))
        elif isinstance(incident.basis, Circle):
            had, *waits = incident.evidence[: 1 + min(MOST_TOLD, len(incident.basis.waits))]
            yield incident.finding(CODE, f"{had}{incident.at_step}\n{'; '.join(waits)}.", _action(incident))


def _summary(incident: Incident, disagreement: Disagreement) -> str:
    d, named_as = disagreement.divergence, disagreement.named
    more = "more" if named_as.kind == "extra" else "fewer"
    reason = f" ({'; '.join(named_as.reasons)})" if named_as.reasons else ""
    return (
        f"{named(d.odd)} had {more} batches than {named(d.others)}{reason}{incident.at_step}\n"
        f"{both_sides(incident, disagreement)}."
    )


def _action(incident: Incident) -> tuple[str, ...]:
    who = named(incident.culprits) if incident.culprits else "all ranks"
    return (
        f"give {who} as many batches as the others: drop_last=True, or a sampler that pads",
        "or agree on the end of the epoch with an all_reduce of a flag, or train in Join",
    )
