"""A rank never came to an operation that others wait in.

What it means
    A collective ends only when all members of its group have entered it. One rank is somewhere else: in its data
    loader, in a checkpoint, in a compilation, in other code, frozen, or already gone. The ranks that time out are
    victims; their stacks and error messages say nothing about the cause.

How it is found
    Every operation that did not end points to the members that never issued it. Followed from rank to rank, through
    groups and point-to-point messages, the arrows end at a rank that waits for nobody. Its last pulse, phase, batch
    or call says what it was busy with.

What to do
    Look at that rank alone: the line where it is, the batch it loads, the file system or the device of its host.
    A longer timeout does not help: nobody else is late.
"""

from collections.abc import Iterator, Sequence

from distdiag.analyzers._wording import named, seconds, verb
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.advice import advice_on
from distdiag.analyzers.investigation.incident import Absence, Incident
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.telling import waiting
from distdiag.analyzers.investigation.waitfor import WaitKind
from distdiag.analyzers.investigation.whereabouts import Whereabouts
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD301"
NAME = "rank-missing"
MAX_TOLD = 3
"""So many different places of absent ranks make a sentence that can still be read."""
ADVICE = {
    "data-loading": "look at the batch that {who} loads, and at the file system that it is read from",
    "checkpoint": "look at the storage that {who} writes its checkpoint to: every rank has to finish or none",
    "compile": "see why {who} alone compiles: warm up all ranks with equal shapes before the first collective",
    "other-collective": "look at the other operation that {who} is in: it does not end either",
    "exited": "see why {who} ended before the others: every rank has to issue the same calls until the end",
    "frozen": "look at the host of {who}: a stopped or frozen process gives no pulse (SIGSTOP, swap, a held GIL)",
    "debugger": "leave the debugger on {who} and take its breakpoint out, or set PYTHONBREAKPOINT=0",
    "process": "look at the process that {who} waits for: ps --ppid with its number, and that one's own output",
    "thread": "look at the thread that {who} waits for: py-spy dump on its host shows them all",
    "network": "see whom {who} asks over the network, and let it give up after a while",
    "running": "see what {who} computes between its last call and this one, and whether it ever ends",
}


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per operation that ranks never came to."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, Absence):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(incident))


def _summary(incident: Incident, absence: Absence) -> str:
    who = named(incident.culprits)
    if absence.places:
        where = "; ".join(_where(incident, place, absence) for place in _one_of_each_cause(absence.places))
    else:
        where = f"{verb(incident.culprits, 'It', 'They')} left no log at all"
    never = "never entered"
    if absence.wait.kind is WaitKind.POINT_TO_POINT:
        never = "never posted the other side of"
    return f"{who} {never} {incident.operation}{incident.at_step}\n{where}; {waiting(incident, absence)}."


def _one_of_each_cause(places: Sequence[Whereabouts]) -> Sequence[Whereabouts]:
    first: dict[str, Whereabouts] = {}
    for place in places:
        first.setdefault(place.cause, place)
    return list(first.values())[:MAX_TOLD]


def _where(incident: Incident, place: Whereabouts, absence: Absence) -> str:
    site = f" ({short(place.site)})" if place.site is not None else ""
    it = "It" if len(incident.culprits) == 1 else f"rank {place.rank}"
    if not place.told:
        return f"{it if len(incident.culprits) == 1 else 'Each of them'} {place.doing}{site}"
    if not absence.one_time:
        return f"{it} {place.doing}{site}"
    lasted = seconds(max(0, absence.until_ns - place.since_ns))
    return f"{it} {place.doing}{f', {lasted} before' if place.cause == 'exited' else f' for {lasted}'}{site}"


def _action(incident: Incident) -> tuple[str, ...]:
    who = named(_of_first_cause(incident))
    advice = ADVICE.get(incident.cause or "", "look at the stacks of {who}: py-spy dump on its host")
    start = () if incident.site is None else (f"look at {incident.site} on {who}",)
    if isinstance(incident.basis, Absence) and not incident.basis.places:
        return (f"check that the launcher started {who}, and with the same master address",)
    places = incident.basis.places if isinstance(incident.basis, Absence) else ()
    known = advice_on(*(place.doing for place in places))
    if known:
        return known
    return (
        *start,
        *_elsewhere(incident),
        advice.format(who=who),
        "raising the timeout will not help: nobody else is late",
    )


def _of_first_cause(incident: Incident) -> tuple[int, ...]:
    """Return the culprits that are absent for the reason that the advice is about."""
    places = incident.basis.places if isinstance(incident.basis, Absence) else ()
    others = {place.rank for place in places if place.cause != places[0].cause}
    return tuple(rank for rank in incident.culprits if rank not in others)


def _elsewhere(incident: Incident) -> tuple[str, ...]:
    """Return where to look for those that are absent for other reasons."""
    places = incident.basis.places if isinstance(incident.basis, Absence) else ()
    further = [place for place in _one_of_each_cause(places)[1:] if place.site is not None]
    return tuple(f"look at {place.site} on rank {place.rank} too" for place in further)
