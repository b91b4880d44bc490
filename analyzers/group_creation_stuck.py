"""Making a process group does not end.

What it means
    All ranks asked for the same group, or one asked for a group while the others wait for it elsewhere, and
    ``init_process_group`` or ``new_group`` does not come back. ``new_group`` does not inherit the timeout of the
    default group, so it may wait for half an hour.

How it is found
    The phases that recording writes around these calls have a begin and no end; the lists that ranks asked for are
    equal, and no rank stays away from all communication. A rank that is refused at an address from the store before
    the others have begun to join read one that processes before them left there: a restart may find the store that was.

What to do
    Check the address of the master, ports and firewalls between the hosts, and the network interface that is used.
    If one rank alone asks for a group, let all of them ask for it.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Circle, Incident, Together, Unexplained
from distdiag.analyzers.investigation.joining import INIT
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD316"
NAME = "group-creation-stuck"
OWN_STORE = (
    "under torchrun, start again with --rdzv-backend=c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: each attempt has a "
    "store of its own then"
)


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the group whose making does not end."""
    for incident in investigate(run).named(NAME):
        inside = incident.basis.wait.waiters if isinstance(incident.basis, Together) else frozenset(run.ranks)
        through = tuple(sorted(set(run.ranks) - inside)) if incident.op == INIT else ()
        yield incident.finding(CODE, _summary(incident, through), _action(incident, through, run.attempt))


def _summary(incident: Incident, through: tuple[int, ...]) -> str:
    if through:
        return (
            f"{incident.op} does not end for some ranks, and {named(through)} came out of it\n"
            f"Whom {verb(through, 'it', 'they')} met, the store alone tells: it may hold what an earlier attempt, or "
            "another job, left in it."
        )
    if isinstance(incident.basis, Unexplained):
        return incident.basis.reason
    if isinstance(incident.basis, Circle):
        who = named(incident.culprits) if incident.culprits else "some ranks"
        return (
            f"{who} {'is' if len(incident.culprits) == 1 else 'are'} in {incident.op}, which the others did not call\n"
            f"{'; '.join(incident.evidence[: len(incident.basis.waits)])}."
        )
    return f"all ranks are in {incident.op} number {incident.seq}, and it does not end\nNo rank is missing from it."


def _action(incident: Incident, through: tuple[int, ...], attempt: int) -> tuple[str, ...]:
    lines = " and ".join(sorted(set(incident.sites.values())))
    if through or isinstance(incident.basis, Unexplained):
        anew = (
            "start the job anew, with a master port or a rendezvous of its own: a store that outlives an attempt keeps "
            "the addresses of its processes"
        )
        steps = (anew, OWN_STORE) if attempt else (anew,)
        return steps if through else (*steps, "leave the ranks that came later alone: nobody waited for them")
    if isinstance(incident.basis, Circle):
        return (f"let every rank call {incident.op}{f', see {lines}' if lines else ''}, members or not",)
    return (
        "check MASTER_ADDR and MASTER_PORT, and that each host reaches the others on the interface that is used",
        "pass a timeout to new_group: it does not inherit that of the default group",
    )
