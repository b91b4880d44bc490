"""Two threads issue calls on one group without an order.

What it means
    The order of calls on a group has to be the same on all ranks. Two threads that use one group, such as a
    checkpoint in the background and the training loop, run in another order on each rank now and then. The stacks
    are the same on all ranks; only the order tells.

How it is found
    The first calls that differ come from two threads that both work on this group on every rank; or all calls are
    there, but two threads had calls in flight on one group.

What to do
    Give the second thread a process group of its own, or issue all calls from one thread.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Disagreement, Incident
from distdiag.analyzers.investigation.issued import called, group_words
from distdiag.analyzers.investigation.telling import both_sides
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD313"
NAME = "thread-race"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first call whose thread differs."""
    for incident in investigate(run).named(NAME):
        yield incident.finding(CODE, _summary(incident), _action(incident))


def _summary(incident: Incident) -> str:
    group = group_words(incident.group or "", incident.members)
    basis = incident.basis
    if isinstance(basis, Disagreement):
        d = basis.divergence
        threads = sorted({call.thread for call in (d.made, d.expected) if call is not None})
        return (
            f"threads {' and '.join(threads)} issue calls on {group} in an order that differs between ranks: "
            f"{incident.number}{incident.at_step}\n"
            f"{both_sides(incident, basis)}."
        )
    call = called(incident.op or "a call", incident.seq)
    return (
        f"two threads had calls in flight on {group}: {call}{incident.at_step}\n"
        f"{named(incident.victims)} issued all of it, so only the order in which the threads' calls began can differ."
    )


def _action(incident: Incident) -> tuple[str, ...]:
    lines = ", ".join(sorted(set(incident.sites.values())))
    return (
        f"make a process group of its own for the second thread (see {lines})" if lines else "give it its own group",
        "or issue both threads' calls from one thread",
    )
