"""What the sources of a run can tell: a foreign one says much less than a log of our own, and its silence nothing."""

import re
import weakref
from collections.abc import Collection, Iterable

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation.rows import records
from distdiag.findings import Confidence
from distdiag.run import Run

OWN = "distdiag"
TEXT = "stderr"
STACKS = "stacks"
UNHEARD, UNTIMED = "unheard", "untimed"
"""Settings in the header of a rank: an importer found nothing of it, though others were heard of, or no moment."""
NOT_TOLD = {
    TEXT: "what the processes printed, which tells no steps, no calls that ended and seldom who is in a group",
    STACKS: "stacks, which tell where threads stood at one moment and nothing of before",
    "flight-recorder": "dumps of the flight recorder, which tell no steps, data loading, errors or ends of processes",
}


_recorded: weakref.WeakKeyDictionary[Run, frozenset[int]] = weakref.WeakKeyDictionary()
"""Many ask; the answer lives as long as its run."""


def recorded(run: Run) -> frozenset[int]:
    """Return the ranks whose own recording tells whether they lived and how they ended."""
    known = _recorded.get(run)
    if known is None:
        known = _recorded[run] = _own(run)
    return known


def _own(run: Run) -> frozenset[int]:
    foreign = {int(h.rank) for h in records(run.headers) if OWN not in _sources(h.source)}
    return frozenset(run.ranks) - foreign


def unheard(run: Run) -> frozenset[int]:
    """Return the ranks of which foreign files hold nothing at all."""
    return _with_setting(run, UNHEARD)


def in_order(run: Run, ranks: Iterable[int]) -> bool:
    """Return whether it is told which of some ranks did something first: all tell moments, of clocks that compare."""
    among = frozenset(ranks)
    if len(among) < 2:
        return True
    compare = len(run.islands) < 2 or any(among <= island for island in run.islands)
    return compare and not among & _with_setting(run, UNTIMED)


def _with_setting(run: Run, setting: str) -> frozenset[int]:
    headers = zip(run.headers["rank"].tolist(), run.headers["settings"].tolist(), strict=True)
    return frozenset(rank for rank, settings in headers if setting in (settings or {}))


def unread(run: Run, ranks: Collection[int]) -> str:
    """Return why nobody can say what ranks did: ``rank 3 left no log``, an empty one, or its beginning."""
    if set(ranks) <= set(run.quality.cut_ranks):
        return f"of {named(ranks)} only the beginning of {verb(ranks, 'its log', 'their logs')} is here"
    empty = set(ranks) <= set(run.ranks) and not unheard(run).intersection(ranks)
    return f"what there is of {named(ranks)} tells no call" if empty else f"{named(ranks)} left no log"


def tells_steps(run: Run) -> bool:
    """Return whether the steps of calls are steps: foreign sources know none."""
    return bool(recorded(run))


def seen_once(run: Run) -> bool:
    """Return whether all that is known are stacks that were taken at one moment."""
    only_stacks = len(run.headers) > 0 and set(run.headers["source"]) == {STACKS}
    return only_stacks and int(run.stacks.groupby("rank")["time_ns"].count().max()) == 1


def only_text(run: Run) -> bool:
    """Return whether all that is known is what processes printed."""
    return len(run.headers) > 0 and set(run.headers["source"]) == {TEXT}


def healthy_confidence(run: Run) -> Confidence:
    """Return how sure it is that nothing went wrong where nothing was found."""
    sources = {name for source in run.headers["source"] for name in _sources(source)}
    if OWN in sources or not sources:
        return Confidence.HIGH
    return Confidence.LOW if sources <= {TEXT, STACKS} else Confidence.MEDIUM


def in_words(run: Run) -> str | None:
    """Return what was read instead of own logs, and what it cannot tell; None where all is our own."""
    foreign = sorted({name for source in run.headers["source"] for name in _sources(source)} - {OWN})
    if not foreign:
        return None
    return "read: " + "; ".join(NOT_TOLD.get(name, name) for name in foreign)


def _sources(source: object) -> frozenset[str]:
    return frozenset(re.split(r"\+", str(source)))
