"""A rank died, and the others waited for it.

What it means
    One rank raised, was killed, aborted or left. The others wait until their timeout, or see the connection break,
    and print the louder errors; they are victims.

How it is found
    Errors that say a wait gave up or a peer went away are never the root. An exception of another kind, a fatal
    signal, ``os._exit``, or a log that ends without a word at the moment when peers lost their connection is. What
    happened first counts; a process that had long been blocked when it was killed is a victim itself.

What to do
    Read that rank's exception. Without one, ask the host: the kernel's log names processes that it killed for
    memory, and the scheduler those that it stopped.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import first_line, named, verb
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.advice import advice_on
from distdiag.analyzers.investigation.deaths import NO_SIGNAL, Death
from distdiag.analyzers.investigation.incident import Incident
from distdiag.analyzers.investigation.paths import short
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD302"
NAME = "rank-died"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the ranks that died first."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, Death):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(incident.basis))


def _summary(incident: Incident, death: Death) -> str:
    who = named(death.ranks) if death.ranks else unnamed(death)
    site = f" ({short(death.site)})" if death.site is not None else ""
    what = {
        "exception": f"raised {first_line(death.what)}",
        "killed": _killed(death),
        "aborted": f"aborted with {death.what}",
        "exited": f"left by {death.what}",
    }[death.cause]
    everybody = "all ranks, " if death.ranks and not incident.culprits else ""
    return f"{everybody}{who} {what}{incident.at_step}{site}\n{'; '.join((_others(incident, death), *death.too))}."


def _killed(death: Death) -> str:
    if death.what == NO_SIGNAL:
        return f"vanished without a word: {verb(death.ranks or (0,), 'its log ends', 'their logs end')} without an exit"
    return f"{verb(death.ranks or (0,), 'was', 'were')} killed by {death.what} without a word"


def _others(incident: Incident, death: Death) -> str:
    if not death.ranks and not incident.victims:
        return "No rank is told here, and nobody is seen to wait"
    if not death.ranks:
        return f"Which rank it is does not stand beside it; {named(incident.victims)} waited or failed after it"
    if death.raised_by:
        return f"{named(death.raised_by)} failed together: the error that they raised names {named(death.ranks)}"
    if not incident.culprits:
        return "Every rank did, so none of them alone is at fault"
    if not incident.victims:
        return "Nobody was waiting for it yet"
    return f"{named(incident.victims)} only waited for {verb(death.ranks, 'it', 'them')}"


def unnamed(death: Death) -> str:
    """Return what a rank is called that nothing names."""
    return f"a process ({death.unnamed})" if death.unnamed else "a rank that nothing names"


def _action(death: Death) -> tuple[str, ...]:
    who = named(death.ranks) if death.ranks else f"that process{f' ({death.unnamed})' if death.unnamed else ''}"
    if death.cause == "killed":
        return (
            f"look in the kernel's log on the host of {who} for the out-of-memory killer: dmesg -T | grep -i kill",
            f"look at the scheduler's account of {who}: memory limit, preemption, a cancelled job",
        )
    where = death.site or "its last line"
    if death.cause == "exited" and death.site is None:
        return (
            f"read what {who} printed before it left, which is not here; for the next time: torchrun --log-dir DIR "
            "--redirects 3 keeps what each rank prints",
        )
    if death.cause == "exited":
        return (f"see why {who} leaves at {where} while others still need it",)
    if death.cause == "aborted":
        return (f"look at {where} and at what the native library printed before the abort of {who}",)
    known = advice_on(death.what)
    return (*known, f"mend the exception of {who} at {where}", "ignore the other ranks' timeouts and connection errors")
