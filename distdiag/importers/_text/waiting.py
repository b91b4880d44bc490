"""The operations that ranks say they were in: time-outs, failed calls of Python, fingerprints, NCCL's own lines."""

import re
from collections.abc import Iterator

from distdiag import events
from distdiag.events import GROUP_UNKNOWN
from distdiag.importers._text.facts import CallSite, CommunicatorRank, Issued, Progress, Raised, Role, Waited
from distdiag.importers._text.names import DEFAULT_GROUP, is_point_to_point
from distdiag.importers._text.tales import Act, Job, Tale, earlier
from distdiag.stackframes import BACKWARD, UNKNOWN, creation_in, operation_in

_LIMIT = re.compile(r"(?:waiting|after|in) (\d+) ?ms")


def tell_waits(job: Job) -> None:
    """Add the collectives that gave up, each once however often it is repeated, with the lines that issued them."""
    for moment, told in job.told:
        what = told.said.what
        if told.rank is None:
            continue
        if isinstance(what, Waited):
            _waited(job, told.rank, what, moment)
        elif isinstance(what, CallSite):
            _site(job.tale(told.rank), tuple(reversed(what.frames)))
        elif isinstance(what, Progress):
            job.tale(told.rank).records.append(
                events.Status(
                    group=job.groups.name(what.group),
                    time_ns=moment,
                    last_enqueued=what.enqueued,
                    last_completed=what.completed,
                )
            )
    _tell_failed_works(job)


def _tell_failed_works(job: Job) -> None:
    """Add the waits of which only the number is told, where others tell of which operation it is."""
    waits = [(told.rank, told.said.what) for _, told in job.told if isinstance(told.said.what, Waited)]
    known = {(rank, waited.seq) for rank, waited in waits}
    by_number: dict[int | None, list[Waited]] = {}
    for _, waited in waits:
        by_number.setdefault(waited.seq, []).append(waited)
    for moment, told in job.told:
        what = told.said.what
        if told.rank is None or not isinstance(what, Progress) or what.failed is None:
            continue
        tags = (None, what.group.name if what.group is not None else None)
        alike = {
            waited.op: waited
            for waited in by_number.get(what.failed, ())
            if what.group is None or waited.group is None or waited.group.name in tags
        }
        if (told.rank, what.failed) not in known and len(alike) == 1:
            known.add((told.rank, what.failed))
            _waited(job, told.rank, next(iter(alike.values())), moment)


def _waited(job: Job, rank: int, what: Waited, moment: int) -> None:
    tale, group = job.tale(rank), job.groups.name(what.group)
    if any((act.group, act.seq, act.op) == (group, what.seq, what.op) for act in tale.acts):
        return
    known = what.lasted_ms if what.error is None else 0
    lasted = known if known is not None else what.timeout_ms or 0
    tale.acts.append(
        Act(
            op=what.op,
            group=group,
            seq=what.seq,
            start_ns=earlier(moment, lasted),
            end_ns=moment,
            error=what.error or f"collective operation timeout: the watchdog saw it run for {lasted} ms",
            shapes=((what.numel,),) if what.numel is not None else (),
            start_known=what.error is None,
        )
    )


def _site(tale: Tale, frames: tuple[str, ...]) -> None:
    for act in reversed(tale.acts):
        if not act.frames:
            act.frames = frames
            return


def tell_failed_calls(job: Job) -> None:
    """Add the calls whose failure came up as an exception that others caused."""
    for moment, told in job.told:
        what = told.said.what
        if told.rank is None or not isinstance(what, Raised) or told.said.role is not Role.CASCADE or what.fatal:
            continue
        limit = _LIMIT.search(what.message)
        start_ns = earlier(moment, int(limit[1])) if limit else moment
        creation = creation_in(what.frames)
        if creation is not None:
            _fail_creation(job.tale(told.rank), creation, start_ns, moment, what.frames)
        else:
            _fail_call(job.tale(told.rank), what, start_ns, moment)


def _fail_creation(tale: Tale, phase: str, begin_ns: int, end_ns: int, frames: tuple[str, ...]) -> None:
    tale.began_ns[phase] = min(begin_ns, tale.began_ns.get(phase, begin_ns))
    tale.sites.setdefault(phase, frames)
    tale.ended_ns.setdefault(phase, end_ns)


def _fail_call(tale: Tale, raised: Raised, start_ns: int, end_ns: int) -> None:
    op = operation_in(raised.frames) or UNKNOWN
    for act in tale.acts:
        if op in (act.op, UNKNOWN, BACKWARD) and act.error is not None:
            # Its time-out was told already; this is the same wait, seen from Python.
            act.frames = act.frames or raised.frames
            return
    tale.acts.append(
        Act(
            op=op,
            group=GROUP_UNKNOWN,
            start_ns=start_ns,
            end_ns=end_ns,
            error=f"{raised.type}: {raised.message}",
            frames=raised.frames,
            start_known=start_ns < end_ns,
        )
    )


def settle_starts(job: Job) -> None:
    """Let calls whose beginning is not told begin with the others of their operation: late is who is seen to be."""
    together: dict[tuple[str, int | None], list[Act]] = {}
    for tale in job.tales.values():
        for act in tale.acts:
            together.setdefault((act.group, act.seq), []).append(act)
    for acts in together.values():
        first_ns = min(act.start_ns for act in acts)
        for act in acts:
            act.start_ns = act.start_ns if act.start_known else first_ns


def pair_two(job: Job) -> None:
    """Let messages of a job of two ranks be with the other rank."""
    if job.groups.world == len(job.tales) == 2:
        for rank, tale in job.tales.items():
            for act in tale.acts:
                if is_point_to_point(act.op):
                    act.peer = 1 - rank


def doubt_unnamed(job: Job) -> None:
    """Let calls without a group be of any, where other calls have one: they cannot be compared with those."""
    acts = [act for tale in job.tales.values() for act in tale.acts]
    if any(act.group != GROUP_UNKNOWN for act in acts):
        for act in acts:
            act.doubtful = act.group == GROUP_UNKNOWN


def tell_issued(job: Job) -> None:
    """Add the collectives that were issued."""
    known = dict(_communicators(job))
    for moment, told in job.told:
        what = told.said.what
        if told.rank is None or not isinstance(what, Issued):
            continue
        name, size = known.get(what.group, (what.group or DEFAULT_GROUP, what.size))
        tale = job.tale(told.rank)
        job.groups.add(name, told.rank, size=size)
        same = [act for act in tale.acts if act.group == name]
        if any((act.seq, act.op, act.shapes) == (what.seq, what.op, what.shapes) for act in same):
            continue
        tale.acts.append(
            Act(
                op=what.op,
                group=name,
                seq=what.seq,
                start_ns=moment,
                end_ns=moment,  # nothing tells: a log may stop anywhere, and that it does is no sign of a wait
                error="Detected mismatch between collectives on ranks" if what.failed else None,
                shapes=what.shapes,
                dtype=what.dtype,
                root=what.root,
                reduce_op=what.reduce_op,
            )
        )
    _put_sites_on_mismatches(job)


def _put_sites_on_mismatches(job: Job) -> None:
    for _, told in job.told:
        what = told.said.what
        if told.rank in job.tales and isinstance(what, Raised) and "Detected mismatch" in what.message:
            _site(job.tales[told.rank], what.frames)


def _communicators(job: Job) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the name that all members of a communicator share: its identity, else its size and turn."""
    turns: dict[tuple[str, int], int] = {}
    for _, told in job.told:
        what = told.said.what
        if isinstance(what, CommunicatorRank):
            turn = turns[what.process, what.size] = turns.get((what.process, what.size), 0) + 1
            name = what.identity or f"communicator {turn} of {what.size} ranks"
            yield what.communicator, (name, what.size)
