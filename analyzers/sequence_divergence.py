"""A rank issued a call that the others did not, or left one out.

What it means
    All members of a group have to issue the same calls in the same order. A rank that issues one more, one less or
    another one is off by one from there on. Calls of equal kind and size go on being paired with unrelated ones,
    without any error and with wrong sums; the job stops later, in an innocent call.

How it is found
    The streams of calls are aligned by what has to agree, by call site and by step, so that an extra or a missing
    call shows as a gap where it happened. A strict majority says which side left the other; between two ranks both
    sides are shown and nobody is blamed. Roles, such as the two arms of ``if rank == 0``, are no difference.

What to do
    Go to the line that is named. Look for a condition on the rank or on local data around it: a save, a log, an
    evaluation, a metric that only some ranks have, an early return, a module that only some batches use.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, named, verb
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.align import Kind
from distdiag.analyzers.investigation.incident import Disagreement, Incident, Miscount, Slip, Surplus
from distdiag.analyzers.investigation.issued import group_words
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.telling import aftermath, at, both_sides, miscount, side, surplus
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD311"
NAME = "sequence-divergence"
_LOOK_AROUND = "look for a condition on the rank around {}: every member has to issue this call, or none"

_ASK_FOR_CALLS = "run it again with recording on: which call was left out, or made once more, is not in these logs"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first call that not all members issued."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, Surplus):
            yield incident.finding(CODE, surplus(incident, incident.basis), (_LOOK_AROUND.format(_line(incident)),))
        elif isinstance(incident.basis, Miscount):
            yield incident.finding(CODE, miscount(incident, incident.basis), (_LOOK_AROUND.format(_line(incident)),))
        elif isinstance(incident.basis, Slip):
            yield incident.finding(CODE, _slip(incident.basis), (_ASK_FOR_CALLS,))
        elif isinstance(incident.basis, Disagreement):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(incident, incident.basis))


def _summary(incident: Incident, disagreement: Disagreement) -> str:
    d, kind = disagreement.divergence, disagreement.named.kind
    group = group_words(incident.group or d.group.group, incident.members)
    if not incident.culprits:
        return (
            f"{named(d.odd)} and {named(d.others)} went apart at {incident.number} of {group}{incident.at_step}\n"
            f"{both_sides(incident, disagreement)}; without a majority nobody is blamed.{aftermath(disagreement)}"
        )
    who, others = named(d.odd), named(d.others)
    if d.passes:
        more = "more" if kind is Kind.EXTRA else "fewer"
        return (
            f"{who} made {more} passes than {others} ({d.passes})\n"
            f"From {incident.number} of {group} on, {side(incident, d.made, d.odd)}, calls met those of another pass."
            f"{aftermath(disagreement)}"
        )
    if kind is Kind.EXTRA:
        return (
            f"{who} issued {side(incident, d.made, d.odd)}, which {others} did not: "
            f"{incident.number} of {group}{incident.at_step}\n"
            f"{others} went on to {side(incident, d.expected, d.others)}.{aftermath(disagreement)}"
        )
    if kind is Kind.LEFT_OUT:
        return (
            f"{who} left out {side(incident, d.expected, d.others)}, {incident.number} of {group}{incident.at_step}\n"
            f"{others} issued it; {who} went on to {side(incident, d.made, d.odd)}.{aftermath(disagreement)}"
        )
    return (
        f"{who} issued {side(incident, d.made, d.odd)} as {incident.number} of {group}{incident.at_step}, "
        f"where {others} issued {d.expected.described() if d.expected else 'nothing'}{at(incident, d.others)}\n"
        f"Either {who} {_either(disagreement)}: the calls alone cannot tell.{aftermath(disagreement)}"
    )


def _either(disagreement: Disagreement) -> str:
    """Return the two stories that the calls alone leave open."""
    if disagreement.named.passes is None:
        return "issued a call too many, or left the others' call out"
    odd, others = disagreement.named.passes
    numbers = f"({odd} forwards begun against {others})"
    if odd < others:
        return f"skipped a pass earlier {numbers}, or issued a call too many here"
    return f"made a pass more {numbers}, or left the others' call out"


def _slip(slip: Slip) -> str:
    behind, ahead = sorted(slip.behind.waiters), sorted(slip.ahead.waiters)
    between = counted(slip.ahead.number - slip.behind.number, "call")
    return (
        f"{named(ahead)} {verb(ahead, 'is', 'are')} {between} ahead of {named(behind)} in another operation\n"
        f"{named(ahead)}: {slip.ops[ahead[0]]} {slip.ahead.number}; {named(behind)}: {slip.ops[behind[0]]} "
        f"{slip.behind.number}; what it issued between cannot have met the others' calls."
    )


def _line(incident: Incident) -> str:
    return short(incident.site) if incident.site is not None else "that call"


def _action(incident: Incident, disagreement: Disagreement) -> tuple[str, ...]:
    kind = disagreement.named.kind
    line = _line(incident)
    who = named(incident.culprits) if incident.culprits else "one side"
    if not incident.culprits and incident.sites:
        line = " and ".join(sorted({short(site) for site in incident.sites.values()}))
    if kind is Kind.LEFT_OUT:
        first = f"see why {who} does not come to {line}: an early return, a local condition, a missing key or module"
    else:
        first = _LOOK_AROUND.format(line)
    paired = disagreement.divergence.paired_silently
    wrong = (f"throw away what was computed since: {counted(paired, 'call')} mixed unrelated values",) if paired else ()
    return (*_passes(who, line, incident, disagreement), first, *wrong)


def _passes(who: str, line: str, incident: Incident, disagreement: Disagreement) -> tuple[str, ...]:
    passes, others = disagreement.named.passes, disagreement.divergence.others
    if passes is None:
        return ()
    if passes[0] > passes[1]:
        return (f"see why {who} goes on at {line}: another first step, more batches, or another end of the loop",)
    lines = {short(incident.sites[rank]) for rank in others if rank in incident.sites}
    loop = f"in the loop around {lines.pop()}" if len(lines) == 1 else "before"
    return (f"see whether {who} skipped a pass {loop}: a continue or an error caught on it alone, or fewer batches",)
