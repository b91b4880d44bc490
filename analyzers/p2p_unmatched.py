"""A send or receive waits for a rank that is in a collective instead.

What it means
    One rank waits for a message while its partner waits for it in a collective. Either the partner forgot its side,
    or the first rank posts one message too many: the logs cannot tell these apart.

How it is found
    Messages are matched in order between the same two ranks. One that did not end points to its partner, and the
    partner's collective points back. The absent partner is named by convention. Where another rank waits for the
    same from the first one, whose line always served that one, the first one gave its message the wrong partner, and
    is named (cause ``wrong-partner``). Where neighbours in a pipeline wait for one another because one of them has
    turned to something else after fewer messages of a step than the other expects, they run different numbers of
    micro-batches (cause ``micro-batches``): of three stages or more, the one that differs from most is named. Where
    both exchanged equally many messages in each step before, who now differs from that is named (causes
    ``message-too-many`` and ``message-left-out``). A receive from any rank that nobody has a message left for is told
    with who sent how many (cause ``from-any-rank``).

What to do
    Count sends and receives of both ranks up to the step that is named.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.circles import FROM_ANY, LEFT_OUT, MICRO_BATCHES, TOO_MANY, WRONG_PARTNER
from distdiag.analyzers.investigation.incident import Incident
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD315"
NAME = "p2p-unmatched"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the message without its other side."""
    for incident in investigate(run).named(NAME):
        yield incident.finding(CODE, _summary(incident), _action(incident))


def _summary(incident: Incident) -> str:
    if incident.cause == WRONG_PARTNER:
        who, others = named(incident.culprits), named(incident.victims)
        return (
            f"{who} gave a message the wrong partner{incident.at_step}\n"
            f"{incident.evidence[0]}. {others} {verb(incident.victims, 'waits', 'wait')} because of that."
        )
    if incident.cause == MICRO_BATCHES:
        who = f"{named(incident.culprits)} ran" if incident.culprits else "the stages of a pipeline ran"
        numbers = "another number of micro-batches, or of rounds of a ring, than the other stages"
        if not incident.culprits:
            numbers = "different numbers of micro-batches"
        return f"{who} {numbers}{incident.at_step}\n{incident.evidence[0]}."
    if incident.cause == FROM_ANY:
        return (
            f"{incident.evidence[0]}, and nobody has one left to send{incident.at_step}\n{incident.evidence[1]}. "
            f"Whether one of them sent too few or it asks for too many is not known."
        )
    who = named(incident.culprits)
    if incident.cause == TOO_MANY:
        others = f"{named(incident.victims)} {verb(incident.victims, 'waits', 'wait')} because of that"
        return f"{who} posted a message too many{incident.at_step}\n{incident.evidence[0]}. {others}."
    need = verb(incident.victims, "needs", "need")
    first = f"{who} did not post the other side of a message that {named(incident.victims)} {need}{incident.at_step}\n"
    told = f"{first}{'; '.join(incident.evidence[:2])}."
    if incident.cause == LEFT_OUT:
        return told
    return f"{told} Whether {who} forgot it or the other posted one too many is not known."


def _action(incident: Incident) -> tuple[str, ...]:
    if incident.cause == WRONG_PARTNER:
        return (f"look at how {incident.site or 'that line'} chooses its partner on {named(incident.culprits)}",)
    if incident.cause == MICRO_BATCHES:
        who = named(incident.culprits) if incident.culprits else "each stage"
        where = (
            f"see where {who} gets its number of micro-batches, or rounds, from: its batch, its loader, its schedule"
        )
        return (where, f"or whether {who} left a step half done: an error caught on it alone, and the next batch")
    lines = " and ".join(sorted(set(incident.sites.values())))
    return (f"count the sends and receives of both sides up to {lines or 'these calls'}",)
