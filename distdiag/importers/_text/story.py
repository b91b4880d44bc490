"""What everybody said, as the records that each rank would have written."""

from collections.abc import Iterator, Mapping, Sequence

from distdiag import events
from distdiag.events import STUCK_WATCHDOG, UNSIGNED
from distdiag.importers._contract import UNHEARD, Imported
from distdiag.importers._text.absences import tell_bars, tell_missed, tell_silence
from distdiag.importers._text.endings import remarked, tell_consequences, tell_ends, tell_errors
from distdiag.importers._text.moments import Clocks
from distdiag.importers._text.normalise import Bar
from distdiag.importers._text.owners import Told
from distdiag.importers._text.records import RankRecords
from distdiag.importers._text.tales import Job, Tale
from distdiag.importers._text.waiting import (
    doubt_unnamed,
    pair_two,
    settle_starts,
    tell_failed_calls,
    tell_issued,
    tell_waits,
)

VICTIMS_CODES = (-6,)
"""A watchdog aborts the process whose collective gave up."""
SOURCE = "stderr"
RUN = "imported"
HOST = "unknown"
UNTIMED = "untimed"
"""Setting of a rank none of whose words bears a moment."""


def imported(
    moments: Sequence[int], told: Sequence[Told], bars: Sequence[Bar], ordinary: Mapping[int, int], clocks: Clocks
) -> Iterator[Imported]:
    """Yield what was told, by attempt and rank.

    ``bars`` are the last progress bars that were drawn, ``ordinary`` tells by number of file when its last line was
    written that is not understood.
    """
    attempts: dict[int, list[tuple[int, Told]]] = {}
    for moment, each in zip(moments, told, strict=True):
        attempts.setdefault(each.attempt, []).append((moment, each))
    for attempt, said in sorted(attempts.items()):
        yield from _attempt(attempt, Job(said, ordinary, clocks), bars)


def _attempt(attempt: int, job: Job, bars: Sequence[Bar]) -> Iterator[Imported]:
    tell_waits(job)
    tell_issued(job)
    tell_failed_calls(job)
    doubt_unnamed(job)
    tell_missed(job)
    tell_errors(job)
    tell_consequences(job)
    tell_ends(job)
    _add_unnamed_ends(job)
    notes = tell_silence(job)
    tell_bars(job, bars)
    settle_starts(job)
    pair_two(job)
    telling = [remark for _, remark in job.remarks if remark.telling]
    if not job.tales and (job.unsigned or telling):
        job.tale(0).silent = True  # it only carries what is of nobody
    first = min(job.tales, default=None)
    for rank, tale in sorted(job.tales.items()):
        records = _records(job, rank, tale, attempt)
        if rank == first:
            records += job.unsigned
            records += [remarked(each, moment) for each, moment in {each: at for at, each in job.remarks}.items()]
        yield Imported(rank=rank, attempt=attempt, events=records, notes=notes)


def _add_unnamed_ends(job: Job) -> None:
    """Keep the ends that nobody named where nothing else says who died: they would only say the same again.

    Who aborts or leaves with an error where ranks gave up waiting may be one of these.
    """
    faults = [record for tale in job.tales.values() for record in tale.records if isinstance(record, events.Fault)]
    if any(fault.fault == "exit" or fault.where in ("uncaught", UNSIGNED) for fault in (*faults, *job.unsigned)):
        return
    held_up = any(fault.type == STUCK_WATCHDOG for fault in faults)  # its monitor aborts the process
    waited = held_up or any(tale.acts for tale in job.tales.values())
    job.unsigned += [end for end in job.ends if not (waited and (end.code in VICTIMS_CODES or (end.code or 0) > 0))]


def _records(job: Job, rank: int, tale: Tale, attempt: int) -> list[events.Event]:
    records = RankRecords(_header(job, rank, tale, attempt))
    for name in sorted({act.group for act in tale.acts} | _named_groups(tale)):
        group = job.groups.record(name, job.first_ns)
        if group is not None:
            records.records.append(group)
    for phase, begin_ns in tale.began_ns.items():
        records.phase(
            phase,
            begin_ns=begin_ns,
            end_ns=tale.ended_ns.get(phase),
            came=tale.came.get(phase),
            frames=tale.sites.get(phase, ()),
        )
    if tale.busy is not None:
        began_ns = min((act.start_ns for other in job.tales.values() for act in other.acts), default=job.first_ns)
        records.phase(tale.busy, begin_ns=began_ns, end_ns=None, came=None)
    for act in sorted(tale.acts, key=lambda act: (act.start_ns, act.seq or 0)):
        records.call(act)
    if tale.stood is not None:
        moment, frames = tale.stood
        records.records.append(events.Pulse(time_ns=moment, step=0, path=records.path(frames)))
    if tale.last_ns:
        records.records.append(events.Status(group=tale.acts[-1].group if tale.acts else "", time_ns=tale.last_ns))
    records.records += sorted(tale.records, key=lambda record: getattr(record, "time_ns", 0))
    return records.log


def _named_groups(tale: Tale) -> set[str]:
    return {record.group for record in tale.records if isinstance(record, events.Status)}


def _header(job: Job, rank: int, tale: Tale, attempt: int) -> events.Header:
    return events.Header(
        schema=events.SCHEMA,
        run=RUN,
        attempt=attempt,
        rank=rank,
        world_size=job.groups.world,
        host=job.clocks.ranks.get(rank) or HOST,
        pid=tale.pid,
        source=SOURCE,
        wall_ns=job.first_ns,
        monotonic_ns=job.first_ns,
        stall_after_seconds=0.0,
        max_bytes=0,
        settings=dict.fromkeys([UNHEARD] * tale.silent + [UNTIMED] * (rank in job.clocks.untimed), "yes"),
    )
