"""Trouble that nothing explains: a run is never called healthy when a rank vanished or failed."""

from collections.abc import Iterator, Mapping

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation.deaths import NO_SIGNAL, Death
from distdiag.analyzers.investigation.incident import Incident, Unexplained
from distdiag.analyzers.investigation.last_seen import LastSeen
from distdiag.analyzers.investigation.lives import End, Life
from distdiag.analyzers.investigation.paths import location
from distdiag.analyzers.investigation.sources import in_order
from distdiag.analyzers.investigation.vanished import SILENCE_NS
from distdiag.run import Run

RANK_DIED = "rank-died"
INSUFFICIENT = "insufficient-evidence"
_NOTHING_WRONG = (End.ORDERLY, End.HARD_EXIT, End.UNTOLD, End.RUNNING)


def unexplained(run: Run, lives: Mapping[int, Life]) -> Iterator[Incident]:
    """Yield what can be said of ranks that failed or ended without a word, nobody having waited for them."""
    silent = {rank: life for rank, life in lives.items() if _is_silent(life)}
    failed = {rank: life for rank, life in lives.items() if life.failed_ns is not None}
    if silent and len(silent) == len(lives) and _stop_together(lives):
        yield _nothing_known(silent, _all_at_once(silent))
    elif silent and silent.keys() <= set(run.quality.cut_ranks):
        reason = f"{named(silent)} stopped writing within a record: the rest of what was recorded is not here"
        yield _nothing_known(silent, reason)
    elif silent:
        yield _vanished(run, lives, silent)
    elif failed:
        first = min(failed.values(), key=lambda life: (life.failed_ns or 0, life.rank))
        said = (first.failure or "in making a process group").splitlines()[0]
        told = in_order(run, failed)
        who = f"rank {first.rank} was the first to fail" if told else f"{named(failed)} failed, which first is not told"
        what = f"{who}: {said}"
        missing = f"; {named(run.missing)} left no log" if run.missing else ""
        yield _nothing_known(failed, f"{what}{missing}")


def _is_silent(life: Life) -> bool:
    """Return whether a rank ended without a word; what only its launcher saw of it adds to what it said itself."""
    seen = life.end in (End.FAILED, End.TORN_DOWN, End.KILLED) and life.failed_ns is not None
    return life.end not in _NOTHING_WRONG and not (seen and life.code is not None)


def _stop_together(lives: Mapping[int, Life]) -> bool:
    lasts = [life.last_ns for life in lives.values()]
    return max(lasts) - min(lasts) <= SILENCE_NS


def _all_at_once(silent: Mapping[int, Life]) -> str:
    if all(life.end is End.TORN_DOWN for life in silent.values()):
        together = ", all at the same time" if len(silent) > 1 else ""
        return f"{named(silent)} {verb(silent, 'was', 'were')} told to stop by SIGTERM{together}"
    return (
        "all logs end at the same time without a word: it was killed from outside, or goes on where nobody can see it"
    )


def _nothing_known(ranks: Mapping[int, Life], reason: str) -> Incident:
    return Incident(
        name=INSUFFICIENT,
        time_ns=min(life.failed_ns or life.last_ns for life in ranks.values()),
        basis=Unexplained(ranks=tuple(sorted(ranks)), reason=reason),
    )


def _vanished(run: Run, lives: Mapping[int, Life], silent: Mapping[int, Life]) -> Incident:
    """Return the end of the ranks that went first, without a word."""
    earliest = min(life.last_ns for life in silent.values())
    first = tuple(sorted(rank for rank, life in silent.items() if life.last_ns - earliest <= SILENCE_NS))
    life = silent[first[0]]
    frames = LastSeen(run).path(life.rank)
    everybody = len(first) == len(lives) > 1
    death = Death(
        ranks=first,
        time_ns=earliest,
        cause="aborted" if life.end is End.ABORTED else "killed",
        what=life.signal or NO_SIGNAL,
        frames=frames,
        step=int(run.calls[run.calls["rank"] == life.rank]["step"].max()) if len(run.calls) else 0,
    )
    site = location(frames[-1]) if frames else None
    return Incident(
        name=RANK_DIED,
        time_ns=earliest,
        basis=death,
        culprits=() if everybody else first,
        step=death.step,
        site=site,
        sites={life.rank: site} if site is not None else {},
        cause=death.cause,
        evidence=("no other rank waited for it or lost its connection to it",),
    )
