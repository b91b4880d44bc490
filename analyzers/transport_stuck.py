"""All ranks are in the same call, and it does not end.

What it means
    Nobody is missing and nobody issued anything else: the program agrees on all ranks. What is left is below it:
    the network, a link, a device, a driver, or kernels of several communicators that block one another.

How it is found
    All members of the group issued the call with equal arguments, no member completed it, and no rank waits for
    one that did not come. Ranks that stand still tell their TCP connections: where the other side no longer
    acknowledges what was sent, the report says between which ranks, and which rank all such connections share.

What to do
    Do not look for a guilty rank in the code. Look at the network's counters and the kernel's log of the hosts
    involved, run a test of the collectives between them, and leave out one host after the other.
"""

from collections.abc import Iterator
from dataclasses import replace

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Incident, Together
from distdiag.analyzers.investigation.sources import recorded
from distdiag.analyzers.investigation.telling import at, gave_up
from distdiag.findings import Finding
from distdiag.live.links import Links, cut_off
from distdiag.run import Run

CODE = "DD305"
NAME = "transport-stuck"
MOST_PAIRS = 6


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the operation that all are in."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, Together):
            finding = incident.finding(CODE, _summary(incident, incident.basis), _action(run, incident))
            unanswered, look = _unanswered(run, incident.basis.wait.since_ns)
            yield replace(finding, evidence=(*unanswered, *finding.evidence), action=(*look, *finding.action))


def _summary(incident: Incident, together: Together) -> str:
    wait = together.wait
    waiters = tuple(sorted(wait.waiters))
    ended = gave_up(wait) if wait.given_up_ns is not None else "still wait"
    who = f"all of {named(waiters)} are" if len(waiters) > 1 else f"{named(waiters)} is"
    return (
        f"{who} in {incident.operation}{incident.at_step}, "
        f"and it does not end\n"
        f"No call differs and no rank is missing; they {ended}{at(incident, waiters)}."
    )


def _unanswered(run: Run, since_ns: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which ranks do not reach which, as their kernels say, and where to look for it."""
    pulses = run.pulses[(run.pulses["links"].map(len) > 0) & (run.pulses["time_ns"] >= since_ns)]
    links = Links()
    for row in pulses.sort_values("time_ns").drop_duplicates("rank", keep="last").to_dict("records"):
        links.learn(int(row["rank"]), row["links"], row["unanswered"])
    broken = links.broken()
    if not broken:
        return (), ()
    pairs = ", ".join(f"rank {sender} to rank {receiver}" for sender, receiver in broken[:MOST_PAIRS])
    hosts = dict(zip(run.headers["rank"].tolist(), run.headers["host"].astype(str).tolist(), strict=True))
    apart = cut_off(broken, hosts)
    where = f"of {named(apart)} ({hosts.get(apart[0], 'its host')})" if apart else "between these ranks"
    return (f"what was sent is not acknowledged: {pairs}",), (f"look at the network {where} first",)


def _action(run: Run, incident: Incident) -> tuple[str, ...]:
    involved = run.headers[run.headers["rank"].isin(recorded(run).intersection(incident.victims))]  # others name none
    hosts = ", ".join(sorted(set(involved["host"].astype(str)))[:8])
    return (
        f"look at the kernel's log and the network's counters of {hosts or 'the hosts involved'}",
        "run a test of the collectives between these hosts alone, leaving out one after the other",
    )
