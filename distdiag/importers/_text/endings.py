"""How ranks ended: their own errors, what launchers saw of them, and what else was worth a line."""

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from distdiag import events
from distdiag.events import CONSEQUENCE, STUCK_WATCHDOG, TELLING, UNSIGNED
from distdiag.importers._text.dumps import FAULTHANDLER, MAIN
from distdiag.importers._text.facts import (
    SIGTERM,
    Ended,
    Frozen,
    Heard,
    Raised,
    Remark,
    Role,
    Said,
    Signalled,
    Stacked,
    Torn,
    What,
)
from distdiag.importers._text.owners import Told
from distdiag.importers._text.tales import Job, Tale
from distdiag.importers._text.times import SECOND_NS
from distdiag.stackframes import user_part
from distdiag.wording import named

WENT_ON_NS = 600 * SECOND_NS
"""Peers that begin to wait only so long after an exception had been served by its rank until then: it was handled."""
ALONE_NS = 60 * SECOND_NS
"""A process that goes on to print for so long after an error of its own handled it."""
ONCE_NS = 5 * SECOND_NS
"""Time in which a rank that failed may still be seen to come into one more wait."""
FAR_NS = 3600 * SECOND_NS
"""Clocks of hosts may differ by so much, and a job takes so long to end, at most."""
OF_OTHERS = (1, -6, -15)
"""Codes with which processes end whose peers are gone: of an exception, of a watchdog, and of their launcher."""
SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
MOST_SAID = 120
"""Characters of an error that are repeated beside a verdict."""
SHELL_SIGNAL = 128
"""What a shell adds to the number of a signal."""
_PEER = re.compile(
    r"(?:by (?:remote )?peer|Call to \w+ from|completion from peer|remote=)\s*\[?(?!127\.|localhost)"
    r"(?P<host>[\w.:-]+?)\]?(?:<\d+>|:\d{2,5}\b)"
)
"""Where the other side of a connection was that broke, as NCCL, gloo and the store write it."""
_MEMORY = re.compile(
    r"out[ _]of[ _](?:device[ _]|host[ _])?memory|can(?:no|')t allocate memory|PT_DEVMEM Allocation failed",
    re.IGNORECASE,
)


def tell_errors(job: Job) -> None:
    """Add the exceptions that are the ranks' own; those that nobody signed are kept apart."""
    gave_up = {rank: min(ends) for rank, tale in job.tales.items() if (ends := _given_up(tale))}
    order = _Order(job)
    seen: set[tuple[int | None, str]] = set()
    ordered = sorted(job.told, key=lambda pair: not getattr(pair[1].said.what, "frames", ()))  # the fuller one first
    for moment, told in ordered:
        what = told.said.what
        if not isinstance(what, Raised) or told.said.role is not Role.INITIATING or "Detected mismatch" in what.message:
            continue
        key = told.rank, what.message[:80]
        if key in seen:
            continue
        seen.add(key)
        first_ns = min((at for rank, at in gave_up.items() if _is_of_clock(job, rank, told)), default=moment)
        if told.rank not in (None, *gave_up) and first_ns < moment:
            if order.is_after(told, first_ns):
                said = f"rank {told.rank} failed after others had given up: {what.type}: {what.message[:MOST_SAID]}"
                job.remarks.append((moment, Remark(text=said, telling=True)))
            else:
                moment = first_ns - 1
        fault = _fault(what, moment, went_on=_went_on(job, told, moment))
        if told.rank is None:
            job.unsigned.append(fault if fault.where == "raised" else replace(fault, where=UNSIGNED))
        else:
            job.tale(told.rank).records.append(fault)


def _given_up(tale: Tale) -> list[int]:
    return [act.end_ns for act in tale.acts if act.error is not None and act.end_ns is not None]


class _Order:
    """What is known to have been said after something else, in files whose lines may stand in any order."""

    def __init__(self, job: Job) -> None:
        self._ends: dict[int, int] = {}
        """By file, the first line that tells of the end of a process, or of the job."""
        self._own: dict[tuple[int, int | None], list[tuple[int, int]]] = {}
        """By file and rank, the lines that bear a moment."""
        for moment, each in job.told:
            what, line, file = each.said.what, each.said.line, each.said.file
            if isinstance(what, Ended | Torn) or (isinstance(what, Remark) and what.stops):
                self._ends[file] = min(line.number, self._ends.get(file, line.number))
            if line.stamp is not None and not line.borrowed:
                self._own.setdefault((file, each.rank), []).append((line.number, moment))

    def is_after(self, told: Told, since_ns: int) -> bool:
        """Return whether an error of a rank that never came is known to be of after others gave up.

        Tracebacks bear no moment, and outputs that are put together, one behind the other, stand in no order. It is
        known where it has a moment, follows upon one of its own rank, or upon the end of a process.
        """
        line, file = told.said.line, told.said.file
        if not line.borrowed:
            return line.stamp is not None
        before = (at for number, at in self._own.get((file, told.rank), ()) if number < line.number)
        return self._ends.get(file, line.number) < line.number or any(at >= since_ns for at in before)


def _fault(raised: Raised, moment: int, *, went_on: bool) -> events.Fault:
    memory = _MEMORY.search(raised.message) or raised.type.endswith(("OutOfMemoryError", "MemoryError"))
    return events.Fault(
        fault="out-of-memory" if memory else "exception",
        time_ns=moment,
        type=raised.type,
        message=raised.message,
        where="raised" if went_on else "uncaught",
        frames=list(user_part(raised.frames) or raised.frames),
        causes=list(raised.causes),
    )


def _went_on(job: Job, told: Told, moment: int) -> bool:
    """Return whether a rank, or the job, is seen to have gone on after an error: it was caught."""
    rank, file = told.rank, told.said.file
    speak = {each.rank for _, each in job.told if each.said.file == file and not isinstance(each.said.what, Heard)}
    alone = speak == {rank}
    if job.ordinary.get(file, 0) > moment + (ALONE_NS if alone else WENT_ON_NS):
        return True
    for other, tale in job.tales.items():
        if not _is_of_clock(job, other, told):
            continue
        begun = [act.start_ns for act in tale.acts if act.end_ns is not None and act.start_ns < act.end_ns]
        if begun and max(begun) > moment + (ONCE_NS if other == rank else WENT_ON_NS):
            return True
    return False


def _is_of_clock(job: Job, rank: int, told: Told) -> bool:
    """Return whether moments of a rank compare with those of something said; what has none of its own may be any."""
    clock = job.clocks.files.get(told.said.file)
    return clock is None or job.clocks.ranks.get(rank, clock) == clock


def tell_consequences(job: Job) -> None:
    """Keep what others did to ranks that nothing names: it tells no cause, but that there was one.

    Where nobody tells a cause, whose connections broke says at least to which host.
    """
    lost: dict[str, set[int | None]] = {}
    for moment, told in job.told:
        what = told.said.what
        if isinstance(what, Raised) and (peer := _PEER.search(what.message)):
            lost.setdefault(peer["host"], set()).add(told.rank)
        if told.rank is not None or not isinstance(what, Raised) or told.said.role is not Role.CASCADE:
            continue
        if not _went_on(job, told, moment):
            job.unsigned.append(replace(_fault(what, moment, went_on=False), where=CONSEQUENCE))
    begun = any(
        told.said.role is Role.INITIATING and isinstance(told.said.what, Raised | Ended) for _, told in job.told
    )
    if not begun and len(lost) == 1:
        ((host, ranks),) = lost.items()
        if len(ranks - {None}) > 1:
            who = named(sorted(rank for rank in ranks if rank is not None))
            text = f"connections broke to {host} alone, as {who} said together"
            job.remarks.append((job.last_ns, Remark(text=text, telling=True)))


def tell_ends(job: Job) -> None:
    """Add what launchers say of the ends of processes, and remarks."""
    stopped = _stopped(job)
    for moment, told in job.told:
        what = told.said.what
        if isinstance(what, Ended) and _follows(job, told.said, what, moment, stopped):
            continue
        if isinstance(what, Remark):
            _remark(job, told.rank, what, moment)
        elif isinstance(what, Signalled):
            _signal(job, what, moment)
        elif told.rank is None:
            _unnamed_end(job, what, moment)
        elif isinstance(what, Ended | Torn):
            _ended(job, told.rank, what, moment)
        elif isinstance(what, Stacked):
            _stacked(job, told.rank, what, moment)
        elif isinstance(what, Frozen):
            if told.rank not in job.tales and _began_late(job, what, moment):
                text = (
                    f"the watchdog thread of rank {told.rank} could not run for {what.seconds} s after others gave up"
                )
                job.remarks.append((moment, Remark(text=text)))
                continue
            job.tale(told.rank).records.append(
                events.Fault(
                    fault="exception",
                    time_ns=moment,
                    type=STUCK_WATCHDOG,
                    message=f"the watchdog thread could not run for {what.seconds} s",
                    where="thread",
                )
            )


def _stopped(job: Job) -> dict[int, tuple[int, int]]:
    """Return by number of file the first line that says that somebody ended the job, and its moment."""
    lines: dict[int, tuple[int, int]] = {}
    for moment, told in job.told:
        said = told.said
        if isinstance(said.what, Remark) and said.what.stops:
            line = said.line.number, moment
            lines[said.file] = min(line, lines.get(said.file, line))
    return lines


def _follows(job: Job, said: Said, ended: Ended, moment: int, stopped: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether a process ended after somebody had ended the job, as any file tells it.

    Other hosts say it by their own clocks: there, what any process does whose peers are gone is taken to follow.
    """
    if said.file in stopped:
        return said.line.number > stopped[said.file][0]
    for file, (_, stop_ns) in stopped.items():
        same = job.clocks.files.get(said.file) == job.clocks.files.get(file)
        if moment > stop_ns if same else _signed(ended.code) in OF_OTHERS and abs(moment - stop_ns) < FAR_NS:
            return True
    return False


def _began_late(job: Job, frozen: Frozen, moment: int) -> bool:
    """Return whether a rank was held up only after others had given up: that does not tell where it was before."""
    gave_up = [act.end_ns for tale in job.tales.values() for act in tale.acts if act.error and act.end_ns is not None]
    return bool(gave_up) and moment - frozen.seconds * SECOND_NS > min(gave_up)


def _signal(job: Job, what: Signalled, moment: int) -> None:
    """Keep who told the others of a time-out, where its own words are not here."""
    if what.rank not in job.tales or not job.tales[what.rank].acts:
        text = (
            f"rank {what.rank} told the others that a collective of its own had timed out; its own words are not here"
        )
        if text not in {remark.text for _, remark in job.remarks}:
            job.remarks.append((moment, Remark(text=text, telling=True)))


def _unnamed_end(job: Job, what: What, moment: int) -> None:
    """Keep the end of a process that only a launcher's number tells, unless it was told to end."""
    if isinstance(what, Stacked) and what.signal is not None:
        number = next((number for number, name in SIGNALS.items() if name == what.signal), None)
        what = Ended(code=-number) if number is not None else what
    if not isinstance(what, Ended):
        return
    code = _signed(what.code)
    if code in (0, -SIGTERM):
        return
    words = [f"local rank {what.local_rank}"] if what.local_rank is not None else []
    words += [f"process {what.pid}"] if what.pid is not None else []
    words += [f"SLURM's task {what.task}"] if what.task is not None else []
    job.ends.append(
        events.Fault(
            fault="end", time_ns=moment, type=SIGNALS.get(-code), message=", ".join(words), where=UNSIGNED, code=code
        )
    )


def _signed(code: int) -> int:
    """Return an exit code, negative where it tells a signal as shells write it."""
    return SHELL_SIGNAL - code if SHELL_SIGNAL < code <= SHELL_SIGNAL + max(SIGNALS) else code


def _stacked(job: Job, rank: int, what: Stacked, moment: int) -> None:
    if what.threads:
        job.tale(rank).records.append(
            events.Stack(time_ns=moment, reason="fault", source=FAULTHANDLER, threads=list(what.threads))
        )
        main = next((each for each in what.threads if each.thread == MAIN), what.threads[0])
        job.tale(rank).stood = moment, tuple(main.frames)
    number = next((number for number, name in SIGNALS.items() if name == what.signal), None)
    if number is not None:
        _ended(job, rank, Ended(code=-number), moment)


def _ended(job: Job, rank: int, what: Ended | Torn, moment: int) -> None:
    tale = job.tale(rank)
    code = _signed(what.code if isinstance(what, Ended) else -SIGTERM)
    known = [record for record in tale.records if isinstance(record, events.Fault) and record.fault == "exit"]
    tale.pid = tale.pid or what.pid or 0
    if known and (known[0].code == code or isinstance(what, Torn)):
        return
    tale.records[:] = [record for record in tale.records if record not in known]
    tale.records.append(
        events.Fault(fault="exit", time_ns=moment, type=SIGNALS.get(-code), where="launcher", code=code)
    )


def _remark(job: Job, rank: int | None, said: Remark, moment: int) -> None:
    remark = remarked(said, moment)
    if rank is None:
        job.remarks.append((moment, said))
    elif remark.message not in {record.message for record in _faults(job.tale(rank).records)}:
        job.tale(rank).records.append(remark)


def remarked(said: Remark, moment: int) -> events.Fault:
    """Return the record of a remark."""
    where = TELLING if said.telling else "logged"
    return events.Fault(fault="warning", time_ns=moment, message=said.text, where=where)


def _faults(records: Sequence[events.Event]) -> list[events.Fault]:
    return [record for record in records if isinstance(record, events.Fault)]
