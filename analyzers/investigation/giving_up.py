"""The waiting as it was when the first rank gave up.

What ranks look like in the end is not what they did then: whoever stood between the late rank and the first that gave
up comes out of its own wait later, and fails only because that one is gone. So calls that began after that moment do
not count, and those that ended after it are still waited in. Clocks of different hosts differ by some error: what a
shift by it would change is not told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers._wording import named, seconds
from distdiag.analyzers.investigation.lives import SECOND_NS, TORN_DOWN, End, Life
from distdiag.analyzers.investigation.other_clocks import on_other_clocks, why_uncertain
from distdiag.analyzers.investigation.queues import Halted, queues_of
from distdiag.analyzers.investigation.waitfor import Wait, reached, standstill
from distdiag.analyzers.investigation.waits import blocked_calls, waits_of
from distdiag.run import Run

NOT_COMPARED_NS = 60 * SECOND_NS
"""Clocks that nothing compares may differ by minutes: one of the hosts may have no time service."""
BRIEF_NS = 3 * SECOND_NS
"""A wait that had lasted less when another rank gave up, and that did not give up itself, is part of healthy work."""
INTERRUPTION = "KeyboardInterrupt"
STOPPED_NS = 5 * SECOND_NS
"""All ranks that are interrupted at a time end within so long."""
OWN_SHARE = 0.5
"""Who spent less of the wait by itself than that was held up by others, too."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivingUp:
    """What ranks waited in when the first of them gave up."""

    rank: int
    time_ns: int
    waits: tuple[Wait, ...]
    halted: tuple[Halted, ...]
    doubt: str | None
    """Why it cannot be told who was waited for, where it cannot."""


def giving_up(run: Run, lives: Mapping[int, Life]) -> GivingUp | None:
    """Return the waiting of the moment at which the first rank gave up; None where nothing went on after it."""
    first = _first(lives)
    if first is None:
        return None
    rank, time_ns = first
    elsewhere, error_ns = on_other_clocks(run, rank), _error_ns(run)
    if not _goes_on(run.calls, time_ns - error_ns * bool(elsewhere)):
        return None
    at = _Moment(run, lives, dict.fromkeys(run.ranks, time_ns))
    sinks = standstill(at.waits).sinks
    doubt = _held_up(run.calls, sinks, at.waits, time_ns)
    if elsewhere and error_ns and _happens(run.calls, elsewhere, time_ns, error_ns):
        for shift in (-error_ns, error_ns):
            cuts = {each: time_ns + (shift if each in elsewhere else 0) for each in run.ranks}
            other = standstill(_Moment(run, lives, cuts).waits).sinks
            if other != sinks:
                doubt = _uncertain(run, rank, sinks ^ other)
    return GivingUp(rank=rank, time_ns=time_ns, waits=at.waits, halted=at.halted, doubt=doubt)


def before_interruption(run: Run, lives: Mapping[int, Life]) -> tuple[Run, Mapping[int, Life]]:
    """Return a run as it was before all of its ranks were interrupted, or told to stop; as it is where they were not.

    The first that leaves breaks the others' connections: what fails then, and who is gone, says nothing of the job.
    """
    if not lives:
        return run, lives
    faults = run.faults
    by_hand = set(faults[(faults["fault"] == "exit") & (faults["type"] == INTERRUPTION)]["rank"])
    first_ns = min(life.end_ns if life.failed_ns is None else life.failed_ns for life in lives.values())
    stopped = all(rank in by_hand or life.signal == TORN_DOWN for rank, life in lives.items())
    at_once = max(life.end_ns for life in lives.values()) - first_ns <= STOPPED_NS
    if not (stopped and at_once) or all(life.end is End.TORN_DOWN for life in lives.values()):
        return run, lives
    return _as_of(run, lives, dict.fromkeys(run.ranks, first_ns - 1))


def _first(lives: Mapping[int, Life]) -> tuple[int, int] | None:
    """Return who gave up first, and when: a call that failed for good, or an abort."""
    moments = [
        (life.failed_ns if life.failed_ns is not None else life.last_ns, rank)
        for rank, life in lives.items()
        if life.failed_ns is not None or life.end is End.ABORTED
    ]
    return (min(moments)[1], min(moments)[0]) if moments else None


def _goes_on(calls: pd.DataFrame, time_ns: int) -> bool:
    """Return whether any rank began a call, or came out of one, after a moment."""
    ended = calls["end_ns"].to_numpy(dtype=np.int64, na_value=0)
    return bool(((calls["start_ns"].to_numpy() > time_ns) | (ended > time_ns) & ~calls["failed"].to_numpy()).any())


def _happens(calls: pd.DataFrame, ranks: frozenset[int], time_ns: int, error_ns: int) -> bool:
    """Return whether some ranks began a call, or came out of one, so near to a moment that either may be first."""
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy(dtype=np.int64, na_value=0)
    near = np.abs(starts - time_ns) <= error_ns
    near |= (np.abs(ends - time_ns) <= error_ns) & ~calls["failed"].to_numpy()
    return bool(np.isin(calls["rank"].to_numpy()[near], list(ranks)).any())


class _Moment:
    """The waits and the stopped devices of a run whose ranks are looked at, each at a time of its own."""

    def __init__(self, run: Run, lives: Mapping[int, Life], cuts: Mapping[int, int]) -> None:
        then, lives_then = _as_of(run, lives, cuts)
        queues = queues_of(then, lives_then)
        found = (*waits_of(then, lives_then, blocked_calls(then, lives_then)), *queues.waits)
        self.waits = reached(found, [wait for wait in found if _counts(lives, wait, max(cuts.values()))])
        self.halted = queues.halted


def _as_of(run: Run, lives: Mapping[int, Life], cuts: Mapping[int, int]) -> tuple[Run, Mapping[int, Life]]:
    calls = _before(run.calls, "start_ns", cuts)
    late = calls["end_ns"].to_numpy(dtype=np.int64, na_value=0) > _cuts_of(calls, cuts)
    ends, failed = calls["end_ns"].mask(late), calls["failed"].to_numpy() & ~late
    then = replace(
        run,
        calls=calls.assign(end_ns=ends, failed=failed),
        phases=_before(run.phases, "time_ns", cuts),
        pulses=_before(run.pulses, "time_ns", cuts),
        statuses=_before(run.statuses, "time_ns", cuts),
    )
    return then, {rank: _life_then(life, cuts[rank]) for rank, life in lives.items()}


def _life_then(life: Life, cut_ns: int) -> Life:
    failed = life.failed_ns is not None and life.failed_ns <= cut_ns
    return replace(
        life,
        end=life.end if life.end_ns <= cut_ns else End.RUNNING,
        last_ns=min(life.last_ns, cut_ns),
        end_ns=min(life.end_ns, cut_ns),
        failed_ns=life.failed_ns if failed else None,
        failure=life.failure if failed else None,
        watched_ns=min(life.watched_ns, cut_ns),
    )


def _before(frame: pd.DataFrame, column: str, cuts: Mapping[int, int]) -> pd.DataFrame:
    if frame.empty:
        return frame
    kept: pd.DataFrame = frame.loc[frame[column].to_numpy(dtype=np.int64) <= _cuts_of(frame, cuts)]
    return kept.reset_index(drop=True)


def _cuts_of(frame: pd.DataFrame, cuts: Mapping[int, int]) -> Integers:
    """Return the cut of the rank of each row."""
    ranks, positions = np.unique(frame["rank"].to_numpy(), return_inverse=True)
    moments = np.array([cuts[rank] for rank in ranks.tolist()], dtype=np.int64)
    return moments[positions] if len(ranks) else np.zeros(0, dtype=np.int64)


def _counts(lives: Mapping[int, Life], wait: Wait, until_ns: int) -> bool:
    """Return whether a wait is one to be explained: it gave up, or it was long and its ranks failed later."""
    if wait.given_up_ns is not None:
        return True
    never_ended = [rank for rank in wait.waiters if lives[rank].failed_ns is not None or lives[rank].in_trouble]
    return bool(never_ended) and until_ns - wait.since_ns >= BRIEF_NS


def _held_up(calls: pd.DataFrame, sinks: frozenset[int], waits: Sequence[Wait], time_ns: int) -> str | None:
    """Return that a rank which was waited for had itself been held up for most of that time, by ranks that came."""
    since_ns = min((wait.since_ns for wait in waits if wait.given_up_ns is not None), default=None)
    if since_ns is None or time_ns <= since_ns:
        return None
    mine = calls[calls["rank"].isin(sinks) & (calls["start_ns"] < time_ns) & (calls["end_ns"] > since_ns)]
    mine = mine[mine["end_ns"] <= time_ns]
    for rank, rows in mine.groupby("rank"):
        held_ns = _covered(rows["start_ns"].to_numpy(dtype=np.int64), rows["end_ns"].to_numpy(dtype=np.int64), since_ns)
        if held_ns > (1 - OWN_SHARE) * (time_ns - since_ns):
            return (
                f"rank {rank} had not come, but had itself been held up for {seconds(held_ns)} of the "
                f"{seconds(time_ns - since_ns)} by ranks that came in the end"
            )
    return None


def _covered(starts: Integers, ends: Integers, since_ns: int) -> int:
    """Return how much of the time after a moment some intervals cover together."""
    order = np.argsort(starts, kind="stable")
    begins, stops = np.maximum(starts[order], since_ns), ends[order]
    reached = np.concatenate(([since_ns], np.maximum.accumulate(stops)[:-1]))
    return int(np.maximum(stops - np.maximum(begins, reached), 0).sum())


def _error_ns(run: Run) -> int:
    error_ns = run.quality.clock_error_ns
    return NOT_COMPARED_NS if error_ns is None else error_ns


def _uncertain(run: Run, first: int, doubtful: frozenset[int]) -> str:
    return f"whether {named(doubtful)} had come before rank {first} gave up cannot be told: {why_uncertain(run)}"


__all__ = ["GivingUp", "before_interruption", "giving_up"]
