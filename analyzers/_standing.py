"""What a standstill comes down to: somebody who did not come, a circle, or nobody's fault."""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from distdiag.analyzers._incident import Absence, Circle, Incident, Together
from distdiag.analyzers._issued import Issued, group_name, issued
from distdiag.analyzers._lives import SECOND_NS, Life
from distdiag.analyzers._waitfor import Standstill, Wait, WaitKind, behind, standstill, waiting_on
from distdiag.analyzers._whereabouts import Whereabouts, whereabouts
from distdiag.analyzers._wording import named, seconds, verb
from distdiag.run import Run

RANK_MISSING = "rank-missing"
LATE_RANK = "late-rank"
TRANSPORT_STUCK = "transport-stuck"
ORDER_DEADLOCK = "order-deadlock"
P2P_DEADLOCK = "p2p-deadlock"
P2P_UNMATCHED = "p2p-unmatched"
GROUP_CREATION_STUCK = "group-creation-stuck"
THREAD_RACE = "thread-race"
INSUFFICIENT = "insufficient-evidence"
BRIEF_NS = 3 * SECOND_NS
"""A wait that has lasted less when the logs end is part of any healthy run."""


class Standing:
    """Reads the waits of one run."""

    def __init__(self, run: Run, lives: Mapping[int, Life], waits: Sequence[Wait]) -> None:
        self._run, self._lives = run, lives
        self._end_ns = max((life.last_ns for life in lives.values()), default=0)
        self._waits = [wait for wait in waits if not self._is_brief(wait)]

    def incidents(self) -> tuple[Incident, ...]:
        """Return what the standstill comes down to, the longest waiting first."""
        found = standstill(self._waits)
        incidents = list(self._absences(found)) or list(self._circles(found)) or list(self._rest())
        return tuple(sorted(incidents, key=lambda incident: (incident.time_ns, incident.name, incident.culprits)))

    def _is_brief(self, wait: Wait) -> bool:
        return wait.given_up_ns is None and self._end_ns - wait.since_ns < BRIEF_NS

    # ---- somebody who did not come ------------------------------------------------------------------------------
    def _absences(self, found: Standstill) -> Iterator[Incident]:
        together: dict[tuple[str, int, str, str], list[tuple[Wait, Whereabouts | None, int | None, int]]] = {}
        for rank in sorted(found.sinks):
            wait = waiting_on(self._waits, (rank,))[0]
            until_ns = wait.given_up_ns if wait.given_up_ns is not None else self._end_ns
            life = self._lives.get(rank)
            place = whereabouts(self._run, life, wait.since_ns, until_ns) if life is not None else None
            arrived_ns = self._arrival(wait, rank)
            late = arrived_ns is not None or (place is not None and place.phase is not None)
            name = LATE_RANK if late else RANK_MISSING
            key = (wait.group, wait.number, name, place.cause if place is not None else "unknown")
            together.setdefault(key, []).append((wait, place, arrived_ns, rank))
        for (_, _, name, cause), absent in together.items():
            yield self._absence(name, cause, absent)

    def _absence(
        self, name: str, cause: str, absent: Sequence[tuple[Wait, Whereabouts | None, int | None, int]]
    ) -> Incident:
        wait = absent[0][0]
        places = tuple(place for _, place, _, _ in absent if place is not None)
        culprits = tuple(rank for _, _, _, rank in absent)
        arrivals = [arrived_ns for _, _, arrived_ns, _ in absent if arrived_ns is not None]
        sites = {rank: call.site for rank, call in self._calls_in(wait).items() if call.site is not None}
        sites |= {place.rank: place.site for place in places if place.site is not None}
        return self._incident(
            name,
            wait,
            Absence(
                wait=wait,
                places=places,
                until_ns=wait.given_up_ns if wait.given_up_ns is not None else self._end_ns,
                arrived_ns=min(arrivals, default=None),
                timeout_seconds=self._timeout(wait),
            ),
            culprits=culprits,
            step=places[0].step if places else None,
            site=places[0].site if places else None,
            sites=sites,
            cause=cause,
            evidence=tuple(_place_evidence(place, wait) for place in places),
        )

    def _arrival(self, wait: Wait, rank: int) -> int | None:
        if wait.kind is not WaitKind.COLLECTIVE or wait.given_up_ns is None:
            return None
        calls = self._run.calls
        came = calls[(calls["group_key"] == wait.group) & (calls["seq"] == wait.number) & (calls["rank"] == rank)]
        came = came[~came["p2p"]]
        return int(came["start_ns"].iloc[0]) if len(came) else None

    def _timeout(self, wait: Wait) -> float | None:
        groups = self._run.groups
        name = wait.group.partition("[")[0]
        known = groups[(groups["group"] == name) & groups["rank"].isin(wait.waiters)]["timeout_seconds"].dropna()
        return float(known.iloc[0]) if len(known) else None

    # ---- a circle -------------------------------------------------------------------------------------------------
    def _circles(self, found: Standstill) -> Iterator[Incident]:
        if not found.cycle:
            return
        cycle = found.cycle
        kinds = {wait.kind for wait in cycle}
        ranks = {rank for wait in cycle for rank in wait.waiters}
        if kinds == {WaitKind.POINT_TO_POINT}:
            name, culprits = P2P_DEADLOCK, tuple(sorted(ranks))
        elif WaitKind.CREATION in kinds:
            name, culprits = GROUP_CREATION_STUCK, _minority(cycle)
        elif WaitKind.POINT_TO_POINT in kinds:
            partners = {rank for wait in cycle if wait.kind is WaitKind.POINT_TO_POINT for rank in wait.absent}
            name, culprits = P2P_UNMATCHED, tuple(sorted(partners))
        else:
            name, culprits = ORDER_DEADLOCK, _minority(cycle)
        blamed = next((wait for wait in cycle if set(culprits) & wait.waiters), cycle[0])
        calls = {rank: call for wait in cycle for rank, call in self._calls_in(wait).items()}
        sites = {rank: call.site for rank, call in calls.items() if call.site is not None}
        yield self._incident(
            name,
            blamed,
            Circle(waits=cycle),
            culprits=culprits,
            step=calls[culprits[0]].step if culprits and culprits[0] in calls else None,
            site=sites.get(culprits[0]) if culprits else None,
            sites=sites,
            evidence=tuple(self._in_circle(wait) for wait in cycle),
        )

    def _in_circle(self, wait: Wait) -> str:
        calls = self._calls_in(wait)
        call = next(iter(calls.values()), None)
        what = f"{call.op} {call.seq}" if call is not None else f"{wait.group} {wait.number}"
        return (
            f"{named(wait.waiters)} {verb(wait.waiters, 'is', 'are')} in {what} of group {self._group(wait)} "
            f"and {verb(wait.waiters, 'needs', 'need')} {named(wait.absent)}"
        )

    # ---- nobody's fault -------------------------------------------------------------------------------------------
    def _rest(self) -> Iterator[Incident]:
        waits = sorted((wait for wait in self._waits if not wait.any_of), key=lambda wait: wait.since_ns)
        unknown = [wait for wait in waits if wait.unknown]
        if unknown:
            yield self._unknown(unknown[0])
            return
        full = [wait for wait in waits if not wait.absent]
        if full:
            yield self._all_in(full[0])

    def _unknown(self, wait: Wait) -> Incident:
        return self._incident(
            INSUFFICIENT,
            wait,
            Absence(wait=wait, places=(), until_ns=self._end_ns),
            culprits=(),
            sites={rank: call.site for rank, call in self._calls_in(wait).items() if call.site is not None},
            evidence=(
                f"{named(wait.unknown)} left no log: whether {verb(wait.unknown, 'it', 'they')} came is not known",
            ),
        )

    def _all_in(self, wait: Wait) -> Incident:
        name = TRANSPORT_STUCK
        if wait.kind is WaitKind.CREATION:
            name = GROUP_CREATION_STUCK
        elif self._raced(wait):
            name = THREAD_RACE
        calls = self._calls_in(wait)
        return self._incident(
            name,
            wait,
            Together(wait=wait),
            culprits=(),
            step=next((call.step for call in calls.values()), None),
            sites={rank: call.site for rank, call in calls.items() if call.site is not None},
            evidence=(f"all of {named(wait.waiters)} issued it with equal arguments, and no other call is missing",),
        )

    def _raced(self, wait: Wait) -> bool:
        """Return whether two threads had calls in flight on this group: record and enqueue are not one act."""
        calls = self._run.calls
        of_group = calls[(calls["group_key"] == wait.group) & ~calls["p2p"]]
        unfinished = of_group[of_group["end_ns"].isna() | of_group["failed"]]
        several = unfinished.groupby("rank")["thread"].nunique()
        return bool((several > 1).any()) or bool(unfinished["contended"].any())

    # ---- shared -----------------------------------------------------------------------------------------------------
    def _incident(
        self,
        name: str,
        wait: Wait,
        basis: Absence | Circle | Together,
        *,
        culprits: tuple[int, ...],
        sites: Mapping[int, str],
        evidence: tuple[str, ...],
        step: int | None = None,
        site: str | None = None,
        cause: str | None = None,
    ) -> Incident:
        calls = self._calls_in(wait)
        call = next(iter(calls.values()), None)
        waiting = behind(self._waits, culprits) if culprits else frozenset(r for w in self._waits for r in w.waiters)
        creation = wait.kind is WaitKind.CREATION
        return Incident(
            name=name,
            time_ns=wait.since_ns,
            basis=basis,
            culprits=culprits,
            victims=tuple(sorted(waiting - set(culprits))),
            group=None if creation else self._group(wait),
            members=None if creation else self._members(wait),
            seq=wait.number,
            op=wait.group if creation else call.op if call is not None else None,
            step=step,
            site=site,
            sites=sites,
            cause=cause,
            evidence=evidence,
        )

    def _calls_in(self, wait: Wait) -> dict[int, Issued]:
        calls = self._run.calls
        p2p = wait.kind is WaitKind.POINT_TO_POINT
        rows = calls[(calls["group_key"] == wait.group) & (calls["seq"] == wait.number) & (calls["p2p"] == p2p)]
        rows = rows[rows["rank"].isin(wait.waiters)].drop_duplicates("rank")
        return {int(rows["rank"].iloc[n]): issued(self._run, rows.iloc[n]) for n in range(len(rows))}

    def _group(self, wait: Wait) -> str:
        return group_name(self._run, wait.group.partition("[")[0], self._members(wait))

    def _members(self, wait: Wait) -> tuple[int, ...] | None:
        calls = self._run.calls
        rows = calls[calls["group_key"] == wait.group]
        return rows["members"].iloc[0] if len(rows) else None


def _minority(cycle: Sequence[Wait]) -> tuple[int, ...]:
    """Return the ranks in the operation with strictly fewest waiters, none at a tie."""
    ordered = sorted(cycle, key=lambda wait: len(wait.waiters))
    if len(ordered) > 1 and len(ordered[0].waiters) == len(ordered[1].waiters):
        return ()
    return tuple(sorted(ordered[0].waiters))


def _place_evidence(place: Whereabouts, wait: Wait) -> str:
    lasted = seconds(max(0, (wait.given_up_ns or place.since_ns) - place.since_ns))
    return (
        f"rank {place.rank} {place.doing} since {lasted} before the others gave up"
        if wait.given_up_ns
        else (f"rank {place.rank} {place.doing}")
    )


def _pulses_of(run: Run, rank: int) -> pd.DataFrame:
    return run.pulses[run.pulses["rank"] == rank]
