"""Ranks that others say did not come, and ranks whose silence says it."""

from collections.abc import Sequence

from distdiag.events import GROUP_UNKNOWN
from distdiag.importers._text.facts import Missed, Passed, Remark
from distdiag.importers._text.filenames import MAX_RANK
from distdiag.importers._text.names import DEFAULT_GROUP
from distdiag.importers._text.normalise import Bar
from distdiag.importers._text.stores import INIT
from distdiag.importers._text.tales import Act, Job, earlier
from distdiag.wording import named

LEAST_WAITING = 2
SEVERAL_TIMES = 2
"""So many times as many ranks as are silent must wait, where several are: an excerpt leaves out any."""
MOST_SUBJECTS = 4
"""Tensors named in a sentence."""
PREPARING = (
    "token",
    "map",
    "load",
    "preprocess",
    "download",
    "filter",
    "pack",
    "convert",
    "generat",
    "saving",
    "writing",
)
"""What bars say that are drawn by one rank alone while the others wait: those of training are drawn everywhere."""


def tell_missed(job: Job) -> None:
    """Add the waits whose messages name, or count, the ranks that did not come."""
    passed = {told.rank for _, told in job.told if isinstance(told.said.what, Passed)}
    for moment, told in job.told:
        what = told.said.what
        if not isinstance(what, Missed):
            continue
        waiter = told.rank if told.rank is not None else _someone(what)
        start_ns = earlier(moment, what.timeout_ms or 0)
        if what.what == INIT:
            if what.gave_up or waiter not in passed:
                _creation(job, waiter, what, start_ns, moment)
            continue
        _wait(job, waiter, what, start_ns, moment)
        if what.subjects:
            said = f"{named(what.ranks)} did not bring {', '.join(what.subjects[:MOST_SUBJECTS])}"
            job.remarks.append((moment, Remark(text=said)))
        for rank in what.ranks:
            if rank < MAX_RANK:
                job.tale(rank)


def _someone(missed: Missed) -> int:
    """Return a rank that is not missed: its message came from somebody."""
    return next(rank for rank in range(len(missed.ranks) + 1) if rank not in missed.ranks)


def _creation(job: Job, rank: int, missed: Missed, begin_ns: int, moment: int) -> None:
    tale = job.tale(rank)
    tale.began_ns[INIT] = min(begin_ns, tale.began_ns.get(INIT, begin_ns))
    if missed.gave_up:
        tale.ended_ns.setdefault(INIT, moment)
    tale.last_ns = max(tale.last_ns, moment)
    if missed.came is not None:
        tale.came[INIT] = max(missed.came, tale.came.get(INIT, 0))


def _wait(job: Job, rank: int, missed: Missed, start_ns: int, moment: int) -> None:
    tale = job.tale(rank)
    group = missed.group.name if missed.group is not None else GROUP_UNKNOWN
    known = [act for act in tale.acts if act.group in (GROUP_UNKNOWN, group)]
    if known:
        known[-1].group, known[-1].doubtful = group, False
        return
    tale.acts.append(
        Act(
            op=missed.what,
            group=group,
            seq=missed.seq,
            start_ns=start_ns,
            end_ns=moment if missed.gave_up else None,
            error=_error(missed) if missed.gave_up else None,
            module=", ".join(missed.subjects) or None,
        )
    )
    tale.last_ns = max(tale.last_ns, moment)


def _error(missed: Missed) -> str:
    if missed.broken:
        return f"connection reset: the store in which {named(missed.ranks)} was to leave its identifier went away"
    return f"timeout: {named(missed.ranks)} did not come"


def tell_silence(job: Job) -> tuple[str, ...]:
    """Give a tale to ranks whose silence is evidence, and return what that rests on in words.

    A rank that came to a collective prints its time-out as the others do. Where most ranks of the world did and few
    did not, those few did not come; unless their output is somewhere else, which nobody can know from here.
    """
    world = job.groups.world or 0
    waits: dict[tuple[str, int | None], set[int]] = {}
    for rank, tale in job.tales.items():
        for act in tale.acts:
            if act.error is not None and act.group in (DEFAULT_GROUP, GROUP_UNKNOWN) and not act.p2p:
                waits.setdefault((act.group, act.seq), set()).add(rank)
    if not waits:
        return ()
    most = max(waits.values(), key=len)
    silent = sorted(set(range(world)) - set(job.tales))
    few = len(silent) == 1 or len(most) > SEVERAL_TIMES * len(silent)
    if not silent or not few or len(most) < LEAST_WAITING:
        return ()
    for rank in silent:
        job.tale(rank).silent = True
    return (f"no error in these files is of {named(silent)}: it may be elsewhere",)


def tell_bars(job: Job, bars: Sequence[Bar]) -> None:
    """Say of the one rank that nobody has heard of what the progress bar says that somebody drew."""
    unheard = [tale for tale in job.tales.values() if not tale.acts and not tale.records]
    labels = [bar.label for bar in bars if bar.percent < 100 and any(word in bar.label.lower() for word in PREPARING)]
    if len(unheard) == 1 and labels:
        unheard[0].busy = labels[-1]
