"""A rank began a pass and skipped the rest of it.

What it means
    One rank ran a forward, or took a batch, and left the pass without its collectives: a loss that was not finite,
    an empty sample, a caught error. The others wait in the gradients of that pass, or pair them with the next one's.

How it is found
    The rank left a call out although it had begun as many forwards, or taken as many batches, as the others; its
    backwards lag behind its forwards.

What to do
    Let all ranks agree on skipping, with an all_reduce of a flag, or run the pass and scale its loss to zero.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Disagreement, Incident
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.telling import aftermath, both_sides
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD603"
NAME = "skipped-steps"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first pass that a rank skipped."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, Disagreement):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(incident))


def _summary(incident: Incident, disagreement: Disagreement) -> str:
    reasons = "; ".join(disagreement.named.reasons)
    return (
        f"{named(incident.culprits)} skipped a pass that {named(disagreement.divergence.others)} made "
        f"({reasons}){incident.at_step}\n"
        f"{both_sides(incident, disagreement)}.{aftermath(disagreement)}"
    )


def _action(incident: Incident) -> tuple[str, ...]:
    line = f" that {short(incident.site)} belongs to" if incident.site is not None else ""
    return (
        f"look for a continue or a caught error on {named(incident.culprits)} in the loop{line}",
        "let all ranks agree on skipping a batch with an all_reduce of a flag, or scale its loss to zero instead",
    )
