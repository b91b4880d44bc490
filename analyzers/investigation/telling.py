"""Sentences that the findings of one kind share: both sides of a disagreement, and who waits where."""

from collections.abc import Sequence

from distdiag.analyzers._wording import counted, named, seconds, verb
from distdiag.analyzers.investigation.incident import Absence, Disagreement, Incident, Miscount, Surplus
from distdiag.analyzers.investigation.issued import Issued, group_words
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.waitfor import Wait

UNTOLD_NS = 1_000_000
"""No wait gives up so soon: its beginning is taken from its end where nothing tells it."""


def both_sides(incident: Incident, disagreement: Disagreement) -> str:
    """Return what each side issued, and where."""
    divergence = disagreement.divergence
    return (
        f"{named(divergence.odd)} issued {side(incident, divergence.made, divergence.odd)}; "
        f"{named(divergence.others)} issued {side(incident, divergence.expected, divergence.others)}"
    )


def side(incident: Incident, call: Issued | None, ranks: tuple[int, ...]) -> str:
    """Return ``all_reduce of 15 float32 (train.py:88)``, or that there was none."""
    return "no further call" if call is None else call.described() + at(incident, ranks)


def at(incident: Incident, ranks: tuple[int, ...]) -> str:
    """Return `` (train.py:88)``, or nothing where the line is not known."""
    lines = {incident.sites[rank] for rank in ranks if rank in incident.sites}
    return f" ({short(lines.pop())})" if len(lines) == 1 else ""


def aftermath(disagreement: Disagreement) -> str:
    """Return how long nobody noticed, as a sentence; nothing where it failed at once."""
    paired = disagreement.divergence.paired_silently
    if not paired:
        return ""
    words = "call was" if paired == 1 else f"{paired} calls were"
    return f" The next {words} paired wrongly without any error."


def waiting(incident: Incident, absence: Absence) -> str:
    """Return who waits for the absent, where, and how long before they gave up."""
    wait = absence.wait
    waiters = tuple(sorted(wait.waiters))
    words = f"{named(waiters)} {_held(absence, waiters)} for {verb(lacking(incident, absence), 'it', 'them')}"
    words += at(incident, waiters)
    if wait.given_up_ns is not None:
        words += f" and {gave_up(wait)}"
    elsewhere, alone = absence.apart
    further = sorted(set(incident.victims) - set(waiters) - set(alone))
    behind = f"; behind {verb(waiters, 'it', 'them')} {named(further)}" if further else ""
    if absence.first is not None and absence.first[0] in further:
        who = "which" if len(further) == 1 else f"of which rank {absence.first[0]}"
        behind += f", {who} gave up first, after {seconds(absence.first[1])}"
    if alone:
        behind += f"; {named(alone)} {_held(absence, alone)} for {named(elsewhere)}"
    return words + behind


def gave_up(wait: Wait) -> str:
    """Return ``gave up after 600 s``, without a figure where nothing tells since when."""
    lasted_ns = wait.waited_ns or 0  # text does not always say since when
    return f"gave up after {seconds(lasted_ns)}" if lasted_ns > UNTOLD_NS else "gave up"


def _held(absence: Absence, ranks: Sequence[int]) -> str:
    over = absence.wait.given_up_ns is not None or absence.first is not None
    return "waited" if over else verb(ranks, "waits", "wait")


def lacking(incident: Incident, absence: Absence) -> tuple[int, ...]:
    """Return those of the culprits that the operation lacks."""
    return tuple(rank for rank in incident.culprits if rank not in absence.apart[0])


def surplus(incident: Incident, basis: Surplus) -> str:
    """Return the summary of a call that some ranks began after all others had ended."""
    waiters = tuple(sorted(basis.wait.waiters))
    reason = ""
    if basis.forwards is not None:
        reason = f" ({basis.forwards[0]} forwards begun against {basis.forwards[1]})"
    return (
        f"{named(waiters)} went on where {named(basis.ended)} had ended{reason}{incident.at_step}\n"
        f"{named(waiters)} {verb(waiters, 'is', 'are')} in {incident.operation}{at(incident, waiters)}, "
        f"which {named(basis.ended)} never issued."
    )


def miscount(incident: Incident, basis: Miscount) -> str:
    """Return the summary of a call that one rank left out, or made once too often, unnoticed among equal ones."""
    difference = counted(abs(basis.usual - basis.count), basis.call.op)
    did = f"left out {difference}" if basis.count < basis.usual else f"issued {difference} too many"
    waiters = f"{named(incident.victims)} {verb(incident.victims, 'waits', 'wait')}"
    where = "" if incident.group is None else f" of {group_words(incident.group, incident.members)}"
    return (
        f"rank {basis.rank} {did}{where}{incident.at_step}\n"
        f"It issued {basis.count} of them{at(incident, tuple(incident.sites))} where {named(basis.peers)} issued "
        f"{basis.usual} in groups of their own; {waiters} in the end, each for another."
    )
