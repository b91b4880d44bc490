"""Makes an incident of ranks that went apart: who, where, and what it is called."""

from dataclasses import replace

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation.caught import before_divergence
from distdiag.analyzers.investigation.divergence import Divergence
from distdiag.analyzers.investigation.incident import Disagreement, Incident
from distdiag.analyzers.investigation.issued import group_name
from distdiag.analyzers.investigation.loops import Labels
from distdiag.analyzers.investigation.memory import ran_out_of_memory
from distdiag.analyzers.investigation.naming import Name, name_of, sites_of
from distdiag.run import Run

EACH_APART = (
    "no two ranks went on with the same calls: each seems to choose by itself, as by random numbers without a common "
    "seed, or in the order of a set"
)


def disagreement(run: Run, divergence: Divergence, labels: Labels, stuck: frozenset[int]) -> Incident:
    """Return the incident that a divergence is; ``stuck`` are the ranks that wait or failed."""
    found = name_of(divergence, labels)
    site, sites = sites_of(divergence, found.kind)
    subject = divergence.expected if found.kind == "left-out" and divergence.expected else divergence.made
    subject = subject or divergence.expected
    decided = divergence.decided and found.name != Name.THREADS  # which thread comes first is nobody's doing
    culprits = divergence.odd if decided else ()
    incident = Incident(
        name=found.name,
        time_ns=divergence.time_ns,
        basis=Disagreement(divergence=divergence, named=found),
        culprits=culprits,
        victims=tuple(sorted((stuck | set(divergence.others)) - set(culprits))) if culprits else tuple(sorted(stuck)),
        group=group_name(run, divergence.group.group, divergence.group.members),
        members=divergence.group.members,
        seq=subject.seq if subject is not None else None,
        op=subject.op if subject is not None else None,
        step=_step(divergence, found.kind),
        site=site,
        sites=sites,
        evidence=(*found.reasons, *_voted(divergence)),
        before=before_divergence(run, divergence),
    )
    memory = ran_out_of_memory(run, divergence)
    return incident if memory is None else replace(incident, **memory)


def _voted(d: Divergence) -> tuple[str, ...]:
    """Return who decided between two sides of which none is a majority, and whether it is two sides at all."""
    if d.each_apart:
        return (EACH_APART,)
    if not d.peers:
        return ()
    return (f"{named(d.peers)} did in {verb(d.peers, 'its', 'their')} own groups what {named(d.others)} did",)


def _step(divergence: Divergence, kind: str) -> int | None:
    """Return the step the odd ranks were in; what they left out belongs to the step in which the others issued it."""
    call = divergence.made or divergence.expected
    if kind == "left-out":
        call = divergence.expected or divergence.made
    return None if call is None else call.step
