"""All ranks are in the same call, and it does not end.

What it means
    Nobody is missing and nobody issued anything else: the program agrees on all ranks. What is left is below it:
    the network, a link, a device, a driver, or kernels of several communicators that block one another.

How it is found
    All members of the group issued the call with equal arguments, no member completed it, and no rank waits for
    one that did not come.

What to do
    Do not look for a guilty rank in the code. Look at the network's counters and the kernel's log of the hosts
    involved, run a test of the collectives between them, and leave out one host after the other.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named, seconds, verb
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Incident, Together
from distdiag.analyzers.investigation.telling import at
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD305"
NAME = "transport-stuck"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the operation that all are in."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, Together):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(run, incident))


def _summary(incident: Incident, together: Together) -> str:
    wait = together.wait
    waiters = tuple(sorted(wait.waiters))
    ended = f"gave up after {seconds(wait.given_up_ns - wait.since_ns)}" if wait.given_up_ns else "still wait"
    return (
        f"all of {named(waiters)} {verb(waiters, 'is', 'are')} in {incident.operation}{incident.at_step}, "
        f"and it does not end\n"
        f"No call differs and no rank is missing; they {ended}{at(incident, waiters)}."
    )


def _action(run: Run, incident: Incident) -> tuple[str, ...]:
    involved = run.headers[run.headers["rank"].isin(incident.victims)]
    hosts = ", ".join(sorted(set(involved["host"].astype(str)))[:8])
    return (
        f"look at the kernel's log and the network's counters of {hosts or 'the hosts involved'}",
        "run a test of the collectives between these hosts alone, leaving out one after the other",
    )
