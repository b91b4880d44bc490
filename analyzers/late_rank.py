"""A rank came later than the others were willing to wait.

What it means
    Nothing is deadlocked. One rank was busy with work that only it does, such as tokenising or saving, and the
    others' timeout was shorter than that work. Their errors, and the broken connections that the late rank meets
    when it arrives, are consequences.

How it is found
    The waiting ends at a rank that waits for nobody and is inside a phase of the user's, or that issued the awaited
    call after the others had given up, or in the last moments of their timeout.

What to do
    Give that work a longer timeout, do it before the process group is made, or do it once and let the others read
    its result from a file.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import named, seconds
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Absence, Incident
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.telling import lacking, waiting
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD303"
NAME = "late-rank"
DATA_LOADING = "data-loading"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per operation that ranks came to too late."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, Absence):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(incident, incident.basis))


def _summary(incident: Incident, absence: Absence) -> str:
    place = absence.places[0]
    late = "had not come"
    gave_up = absence.wait.given_up_ns is not None or absence.first is not None
    if absence.arrived_ns is not None and gave_up:
        late = "came too late"
        if absence.one_time:
            late = _came(absence.arrived_ns, absence.wait.since_ns, absence.until_ns)
    site = f" ({short(place.site)})" if place.site is not None else ""
    it = "It" if len(incident.culprits) == 1 else f"rank {place.rank}"
    others = absence.apart[0]
    also = f", nor {named(others)} to another one" if others and late == "had not come" else ""
    also = also or (f", and {named(others)} to another one" if others else "")
    return (
        f"{named(lacking(incident, absence))} {late} to {incident.operation}{incident.at_step}{also}\n"
        f"{it} {place.doing}{site}; {waiting(incident, absence)}."
    )


def _came(arrived_ns: int, since_ns: int, given_up_ns: int) -> str:
    if arrived_ns > given_up_ns:
        return f"came {seconds(arrived_ns - given_up_ns)} too late"
    return f"came {seconds(arrived_ns - since_ns)} after the first"


def _action(incident: Incident, absence: Absence) -> tuple[str, ...]:
    who, phase = named(incident.culprits), absence.places[0].phase
    work = f'the phase "{phase}"' if phase is not None else "what it does there"
    limit = "" if absence.timeout_seconds is None else f": it is {absence.timeout_seconds:g} s now"
    first = f"look at the batch that {who} loaded then, and at the file system that it is read from"
    if incident.cause != DATA_LOADING:
        first = (
            f"move {work} of {who} before init_process_group, or let {who} do it once and the others read its result"
        )
    return (
        first,
        f"or give the group a timeout longer than {work} takes{limit}",
    )
