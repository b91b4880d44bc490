"""Processes that ended and could not say why: by a signal, by a hard exit, or without a word.

A run is never called healthy when a rank vanished or failed, though nothing may explain it."""

import bisect
import functools
import re
from collections.abc import Iterator, Mapping

import pandas as pd

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation.deaths import NO_SIGNAL, Death
from distdiag.analyzers.investigation.incident import Incident, Unexplained
from distdiag.analyzers.investigation.lives import CONNECTION, SECOND_NS, TIMEOUT, End, Life
from distdiag.analyzers.investigation.paths import Frames, location
from distdiag.analyzers.investigation.rows import by_rank
from distdiag.analyzers.investigation.sources import in_order
from distdiag.run import Run, user_frames

SILENCE_NS = 5 * SECOND_NS
"""Pulses come each second; a log that ends so long before the others' belongs to a process that was gone or frozen."""
NOTICED_NS = 5 * SECOND_NS
"""A killed process's sockets close at once; peers that wait for it, or come to, see that within seconds."""
LONG_BLOCKED_NS = 5 * SECOND_NS
"""A process that dies after so long in a wait for others is a victim: of a launcher, a watchdog or a cap."""
PULSE_NS = 1 * SECOND_NS
"""A process that gives no pulse any more has been gone for up to so long."""
RANK_DIED = "rank-died"
INSUFFICIENT = "insufficient-evidence"
_NOTHING_WRONG = (End.ORDERLY, End.HARD_EXIT, End.UNTOLD, End.RUNNING)


class LastSeen:
    """The newest user frames and the newest step of each rank."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def path(self, rank: int) -> Frames:
        """Return the newest user frames known of a rank, from its calls, pulses, phases and batches."""
        return self._run.paths.get(self._paths.get(rank, 0), ())

    def step(self, rank: int) -> int:
        """Return the newest step known of a rank, 0 where none is."""
        return int(self._steps.get(rank, 0))

    @functools.cached_property
    def _paths(self) -> dict[int, int]:
        run = self._run
        seen = pd.concat(
            [
                frame.loc[frame["path"].notna(), ["rank", column, "path"]].set_axis(["rank", "time", "path"], axis=1)
                for frame, column in (
                    (run.calls, "start_ns"),
                    (run.pulses, "time_ns"),
                    (run.phases, "time_ns"),
                    (run.batches, "time_ns"),
                )
            ]
        )
        newest = seen.loc[seen["time"] == seen.groupby("rank")["time"].transform("max")]
        return by_rank(newest.groupby("rank")["path"].max().astype("int64"))

    @functools.cached_property
    def _steps(self) -> dict[int, int]:
        run = self._run
        steps = pd.concat([run.calls[["rank", "step"]], run.pulses[["rank", "step"]]])
        return by_rank(steps.groupby("rank")["step"].max())


class Vanished:
    """The ends of the processes of a run that could not say why."""

    def __init__(self, run: Run, lives: Mapping[int, Life], blocked_since: Mapping[int, int]) -> None:
        self._blocked_since = blocked_since
        self._last_seen = LastSeen(run)
        self._failures = {rank: life.failed_ns for rank, life in lives.items() if life.failed_ns is not None}
        self._said = {rank: lives[rank].failure or "" for rank in self._failures}
        self.timeouts = self._saying(TIMEOUT)
        """When ranks gave up waiting."""
        self.first_timeout_ns = min(self.timeouts.values(), default=None)
        self._failure_times = sorted(self._failures.values())
        self._broken = self._saying(CONNECTION)
        self._newest_ns = max((life.last_ns for life in lives.values()), default=0)
        self._long_blocked: dict[End, list[int]] = {}
        for life in sorted(lives.values(), key=lambda life: life.last_ns):
            if self._had_long_been_blocked(life):
                self._long_blocked.setdefault(life.end, []).append(life.last_ns)

    def ended(self, life: Life) -> Death | None:
        """Return the death of a process that could not say why."""
        if self._had_long_been_blocked(life):
            return None
        if life.end in (End.KILLED, End.FAILED):
            return self._seen_by_launcher(life)
        if life.end is End.ABORTED:
            frames = tuple(user_frames(life.crash_frames))
            return self._death(life, "aborted", life.signal or "a fatal signal", frames)
        if life.end is End.HARD_EXIT and (life.code or self._failed_after(life)):
            return self._death(life, "exited", f"os._exit({life.code})")
        if life.end in (End.SILENT, End.TORN_DOWN) and life.failed_ns is None and not self._all_were_ended(life):
            seen_by = self._saw_it_go(life)
            if seen_by:
                signal = "SIGTERM" if life.end is End.TORN_DOWN else "SIGKILL"
                return self._death(life, "killed", signal, seen_by=seen_by)
        return None

    def _saying(self, pattern: re.Pattern[str]) -> dict[int, int]:
        """Return when the ranks failed whose failure says something."""
        return {rank: at for rank, at in self._failures.items() if pattern.search(self._said[rank])}

    def _had_long_been_blocked(self, life: Life) -> bool:
        since_ns = self._blocked_since.get(life.rank)
        return since_ns is not None and life.end_ns - since_ns > LONG_BLOCKED_NS

    def _all_were_ended(self, life: Life) -> bool:
        """Return whether ranks that had long been waiting ended without a word at the same moment."""
        moments = self._long_blocked.get(life.end, [])
        first = bisect.bisect_left(moments, life.last_ns - 2 * PULSE_NS)
        return first < len(moments) and moments[first] <= life.last_ns + 2 * PULSE_NS

    def _seen_by_launcher(self, life: Life) -> Death | None:
        if life.failed_ns is not None:
            return None  # it had given up a wait before
        if life.end is End.KILLED:
            return self._death(life, "killed", life.signal or "a signal")
        return self._death(life, "exited", f"exit code {life.code}")

    def _failed_after(self, life: Life) -> bool:
        return any(failed_ns >= life.end_ns for failed_ns in self._failure_times[-1:])

    def _death(self, life: Life, cause: str, what: str, frames: Frames = (), seen_by: tuple[int, ...] = ()) -> Death:
        return Death(
            ranks=(life.rank,),
            time_ns=self._moment(life),
            cause=cause,
            what=what,
            frames=frames or self._last_seen.path(life.rank),
            step=self._last_seen.step(life.rank),
            seen_by=seen_by,
        )

    def _moment(self, life: Life) -> int:
        """Return when a process was gone: it could not say, but its pulse stopped and connections to it broke."""
        if life.end is End.HARD_EXIT:
            return life.end_ns
        after = bisect.bisect_right(self._failure_times, life.last_ns)
        return min([life.last_ns + PULSE_NS, *self._failure_times[after : after + 1]])

    def _saw_it_go(self, life: Life) -> tuple[int, ...]:
        """Return the ranks whose connection broke after a silent rank's last record, nobody having given up before."""
        if self.first_timeout_ns is not None and self.first_timeout_ns <= life.last_ns:
            return ()
        broken = {rank: at for rank, at in self._broken.items() if at >= life.last_ns - SECOND_NS}
        at_once = tuple(rank for rank, at in broken.items() if at - life.last_ns <= NOTICED_NS)
        if at_once:
            return at_once
        # Peers that were busy notice only when they come to their next collective.
        return tuple(broken) if self._newest_ns - life.last_ns > SILENCE_NS else ()


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
