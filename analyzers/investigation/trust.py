"""How far a finding can be trusted: what the logs hold, and what they lack."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from distdiag.analyzers._wording import counted, named, verb
from distdiag.analyzers.investigation.fits import Misfit
from distdiag.analyzers.investigation.incident import Absence, Disagreement, Incident, Together
from distdiag.analyzers.investigation.lives import TORN_DOWN, End, Life
from distdiag.analyzers.investigation.sources import in_words, recorded, seen_once, tells_steps, unheard
from distdiag.events import NUMBER_UNKNOWN
from distdiag.findings import Confidence
from distdiag.run import Run

WARNING = "warning"
MOST_WARNINGS = 4
"""More than that are repetitions on other ranks."""
CREATIONS = ("init_process_group", "new_group", "split_group")


def confidence_of(run: Run, incident: Incident) -> Incident:
    """Return the incident with its confidence and the reasons for it in the evidence."""
    doubts = tuple(_doubts(run, incident))
    confidence = Confidence.HIGH if not doubts else Confidence.MEDIUM
    if _is_guesswork(run, incident) or len(doubts) > 2:
        confidence = Confidence.LOW
    evidence = (*incident.evidence, *_warnings(run), *doubts, data_in_words(run))
    return replace(incident, confidence=confidence, evidence=evidence)


def _warnings(run: Run) -> tuple[str, ...]:
    """Return what libraries and launchers warned of, each once."""
    said = run.faults[run.faults["fault"] == WARNING]["message"].dropna()
    return tuple(sorted(set(said)))[:MOST_WARNINGS]


def within_source(run: Run, incident: Incident) -> Incident:
    """Return the incident without the numbers that its source does not know."""
    return replace(
        incident,
        step=incident.step if tells_steps(run) else None,
        # The making of groups counts from 0, all else from 1.
        seq=None if incident.seq == NUMBER_UNKNOWN and incident.op not in CREATIONS else incident.seq,
    )


def data_in_words(run: Run) -> str:
    """Return how whole the logs are: ``8 of 8 logs whole, nothing dropped, clocks aligned to 0.4 ms``."""
    quality = run.quality
    expected = run.world_size or len(run.ranks)
    if not recorded(run):
        heard = len(run.ranks) - len(unheard(run))
        return f"{counted(quality.files, 'file')} told of {heard} of {counted(expected, 'rank')}"
    whole = len(run.ranks) - len(quality.cut_ranks)
    words = f"{whole} of {expected} logs" + (" whole" if not quality.undecodable_lines else "")
    dropped = sum(quality.dropped_records.values())
    words += ", nothing dropped" if not dropped else f", {dropped} records dropped"
    if quality.clock_error_ns is None:
        return words + ", clocks not comparable"
    return words + (f", clocks aligned to {quality.clock_error_ns / 1e6:.1f} ms" if quality.clock_error_ns else "")


def _doubts(run: Run, incident: Incident) -> list[str]:
    doubts = [*_doubts_of_source(run, incident)]
    members = set(incident.members) if incident.members is not None else set(range(run.world_size or 0))
    unlogged = sorted(members & set(run.missing))
    if unlogged:
        doubts.append(f"{named(unlogged)} left no log")
    cut = sorted(members.intersection(run.quality.cut_ranks))
    if cut:
        doubts.append(f"the {verb(cut, 'log', 'logs')} of {named(cut)} {verb(cut, 'is', 'are')} cut within a record")
    dropped = sorted(rank for rank in run.quality.dropped_records if rank in members)
    if dropped:
        doubts.append(f"older records of {named(dropped)} were dropped")
    damaged = sorted(run.quality.undecodable_lines)
    if damaged:
        doubts.append(f"damaged lines in {', '.join(damaged)}")
    if isinstance(incident.basis, Together) and incident.seq is None:
        doubts.append("which of its calls it is, nothing tells")
    if isinstance(incident.basis, Disagreement):
        divergence = incident.basis.divergence
        if divergence.group.diverged_before:
            doubts.append("the first difference lies before the calls that the logs still hold")
        if divergence.weak:
            doubts.append("only call sites differ: no argument and no step disagrees")
        if not divergence.decided:
            doubts.append("no strict majority: the logs cannot say which side is wrong")
    return doubts


def _doubts_of_source(run: Run, incident: Incident) -> Iterator[str]:
    if isinstance(incident.basis, Misfit) and not (incident.basis.larger or incident.basis.of_type):
        yield "a message may be shorter than its room on purpose: some backends let it pass"
    read = in_words(run)
    if read is not None:
        yield read
    if seen_once(run):
        yield "each process was looked at once, which does not show that it stands still: look again"
    silent = sorted(unheard(run) & set(incident.culprits))
    if silent:
        yield f"no error here is of {named(silent)}: did not come, or what it printed of it is elsewhere"


def _is_guesswork(run: Run, incident: Incident) -> bool:
    basis = incident.basis
    if set(incident.culprits) & unheard(run) or seen_once(run):
        return True
    if isinstance(basis, Absence):
        return not basis.places and not incident.culprits
    if isinstance(basis, Together) and incident.seq is None:
        return True
    return isinstance(basis, Disagreement) and basis.divergence.group.diverged_before


def with_signal(lives: Mapping[int, Life], incident: Incident) -> Incident:
    """Add that culprits handled a SIGTERM, which may have let them leave their loop, if nobody else did."""
    handled = {rank for rank, life in lives.items() if life.end is End.ORDERLY and life.signal == TORN_DOWN}
    if not handled or not handled <= set(incident.culprits) or incident.cause == "exited":
        return incident
    said = f"{named(handled)} had been told to stop with SIGTERM, which the script handles by itself"
    return replace(incident, evidence=(*incident.evidence, said))
