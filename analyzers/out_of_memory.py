"""A rank ran out of memory.

What it means
    One rank could not get the memory it asked for. Where the error came to the top the rank died of it; where it
    was caught, the rank went on without the calls of that batch, and the others wait in them.

How it is found
    The making of ``torch.OutOfMemoryError`` is recorded even if it is caught later, with what held most of the
    device's memory then; where torch records the history of memory, by line and with a snapshot. It is the root when
    the same rank dies of it, or leaves a collective out right after it that the others issued. What the allocator of
    host memory raises is a plain ``RuntimeError`` made in C++, which nothing cheap enough sees: where it was
    caught it is not told as the reason.

What to do
    Give that rank less to do (its batch, its sequence length, its part of the model) or more memory. Do not catch
    the error on one rank alone: let all ranks agree to skip the batch.
"""

from collections.abc import Iterator
from dataclasses import replace

from distdiag.analyzers._wording import first_line, named, verb
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.deaths import Death
from distdiag.analyzers.investigation.incident import Disagreement, Incident
from distdiag.analyzers.investigation.memory import fragmentation, held_at, memory_before
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.telling import both_sides
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD401"
NAME = "out-of-memory"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the ranks that ran out of memory first."""
    for incident in investigate(run).named(NAME):
        finding = incident.finding(CODE, _summary(run, incident), _action(incident))
        held, snapshots = held_at(run, finding.culprits)
        yield replace(finding, evidence=(*finding.evidence, *held), action=(*finding.action, *snapshots))


def _summary(run: Run, incident: Incident) -> str:
    basis = incident.basis
    ranks = basis.ranks if isinstance(basis, Death) else incident.culprits
    site = f" ({short(incident.site)})" if incident.site is not None else ""
    what = f": {first_line(basis.what)}" if isinstance(basis, Death) else ""
    memory = memory_before(run, ranks[0], incident.time_ns) if ranks else None
    parts = [_consequence(incident), *([memory] if memory is not None else [])]
    who = named(ranks) if ranks else "a rank that nothing names"
    return f"{who} ran out of memory{incident.at_step}{site}{what}\n{'; '.join(parts)}."


def _consequence(incident: Incident) -> str:
    if isinstance(incident.basis, Disagreement):
        return f"The error was caught, and then {both_sides(incident, incident.basis)}"
    if not incident.victims:
        return "Nobody was waiting for it yet"
    if isinstance(incident.basis, Death) and not incident.basis.ranks:
        return f"Which rank it is does not stand beside it; {named(incident.victims)} waited or failed after it"
    return f"{named(incident.victims)} only waited for {verb(incident.culprits, 'it', 'them')}"


def _action(incident: Incident) -> tuple[str, ...]:
    ranks = incident.basis.ranks if isinstance(incident.basis, Death) else incident.culprits
    who = named(ranks) if ranks else "that rank"
    caught = (
        ("let all ranks agree on skipping a batch, with an all_reduce of a flag, instead of catching it on one",)
        if isinstance(incident.basis, Disagreement)
        else ()
    )
    fragmented = fragmentation(" ".join(incident.evidence))
    return (
        *((f"set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: {fragmented}",) if fragmented is not None else ()),
        f"compare the batch of {who} in that step with the others': tokens, images, padding",
        *caught,
    )
