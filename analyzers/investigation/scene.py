"""A standstill to be read: the run, how its ranks ended, what they were blocked in, and the calls behind it."""

import functools
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from distdiag.analyzers.investigation.giving_up import GivingUp
from distdiag.analyzers.investigation.incident import Absence, Circle, Incident, Miscount, Slip, Surplus, Together
from distdiag.analyzers.investigation.issued import Issued, group_name, issued
from distdiag.analyzers.investigation.lives import SECOND_NS, End, Life
from distdiag.analyzers.investigation.paths import location
from distdiag.analyzers.investigation.queues import Halted
from distdiag.analyzers.investigation.rows import by_rank, records
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind, behind
from distdiag.run import Run

BRIEF_NS = 3 * SECOND_NS
"""A wait that has lasted less when the logs end is part of any healthy run."""
STALL_NS = 60 * SECOND_NS
"""Recording's limit where the logs do not tell it."""
WARM_UP_STEPS = 2
"""Compilation and lazy connections make the first steps' waits no measure."""
PATIENCE = 5
"""While a job runs, a wait may last so many times its longest one so far, up to its stall limit."""


class Scene:
    """Answers what the readers of a standstill ask of its logs."""

    def __init__(
        self,
        run: Run,
        lives: Mapping[int, Life],
        waits: Sequence[Wait],
        collectives: pd.DataFrame,
        halted: Sequence[Halted] = (),
        then: GivingUp | None = None,
    ) -> None:
        """Take what ranks wait in: at the end, or when the first of them gave up where others went on.

        ``collectives`` are those that count, as ``collectives_of`` returns them.
        """
        self.run, self.lives, self.collectives, self.then = run, lives, collectives, then
        self.halted = tuple(halted) if then is None else then.halted
        newest_ns = max((life.last_ns for life in lives.values()), default=0)
        self.end_ns = newest_ns if then is None else then.time_ns
        self.waits = [wait for wait in waits if not self._is_brief(wait)]
        self._calls: dict[Wait, dict[int, Issued]] = {}

    def _is_brief(self, wait: Wait) -> bool:
        if wait.given_up_ns is not None or self.then is not None:
            return False
        untold = [self.lives[rank] for rank in wait.waiters if self.lives[rank].end is End.UNTOLD]
        end_ns = self.end_ns if len(untold) < len(wait.waiters) else min(life.watched_ns for life in untold)
        running = any(self.lives[rank].end is End.RUNNING for rank in wait.waiters | wait.absent if rank in self.lives)
        return end_ns - wait.since_ns < (self._patience_ns if running else BRIEF_NS)

    @functools.cached_property
    def _patience_ns(self) -> int:
        """Return how long a wait of a running job may last before it counts: recording's own limit, or less."""
        calls, pulses = self.run.calls, self.run.pulses
        well = calls[~calls["failed"] & calls["end_ns"].notna() & (calls["step"] >= WARM_UP_STEPS)]
        longest = int((well["end_ns"] - well["start_ns"]).max()) if len(well) else 0
        limit = pulses["stall_after_seconds"].max() if len(pulses) else float("nan")
        limit_ns = STALL_NS if pd.isna(limit) else int(limit * SECOND_NS)
        return max(BRIEF_NS, min(limit_ns, PATIENCE * longest))

    def until_ns(self, wait: Wait) -> int:
        """Return when the waiters gave up, the first of the run did, or the newest record of it."""
        return wait.given_up_ns if wait.given_up_ns is not None else self.end_ns

    def compares(self, ranks: Iterable[int]) -> bool:
        """Return whether the clocks of some ranks compare."""
        logged = frozenset(ranks).intersection(self.run.ranks)
        return len(self.run.islands) < 2 or any(logged <= island for island in self.run.islands)

    def calls_in(self, wait: Wait) -> Mapping[int, Issued]:
        """Return the calls of those blocked in an operation."""
        if wait not in self._calls:
            rows = self.rows_of(wait)
            rows = rows[rows["rank"].isin(wait.waiters)].drop_duplicates("rank")
            self._calls[wait] = {int(row.rank): issued(self.run, row) for row in records(rows)}
        return self._calls[wait]

    def rows_of(self, wait: Wait) -> pd.DataFrame:
        """Return the calls of all ranks that belong to an operation."""
        calls = self.run.calls
        p2p = wait.kind is WaitKind.POINT_TO_POINT
        return calls[(calls["group_key"] == wait.group) & (calls["seq"] == wait.number) & (calls["p2p"] == p2p)]

    def sites_of(self, waits: Iterable[Wait]) -> dict[int, str]:
        """Return the line at which each blocked rank is."""
        sites: dict[int, str] = {}
        for wait in waits:
            if wait.kind is WaitKind.CREATION:
                begun = self.run.phases[(self.run.phases["phase"] == wait.group) & self.run.phases["path"].notna()]
                paths = by_rank(begun[begun["rank"].isin(wait.waiters)].groupby("rank")["path"].last())
                found = {rank: self.run.paths.get(path, ())[-1:] for rank, path in paths.items()}
                sites |= {rank: location(*frames) for rank, frames in found.items() if frames}
            else:
                sites |= {rank: call.site for rank, call in self.calls_in(wait).items() if call.site is not None}
        return sites

    def group(self, wait: Wait) -> str:
        """Return the name under which people know the group."""
        return group_name(self.run, wait.group.partition("[")[0], self.members(wait))

    def members(self, wait: Wait) -> tuple[int, ...] | None:
        """Return the members of the group, None where nobody recorded them."""
        rows = self.rows_of(wait)
        members: tuple[int, ...] | None = rows["members"].iloc[0] if len(rows) else None
        return members

    def may_have_more(self, wait: Wait) -> bool:
        """Return whether a group may have members that its sources do not tell."""
        if wait.kind is not WaitKind.COLLECTIVE:
            return False
        groups = self.run.groups
        known = groups[groups["group"] == wait.group.partition("[")[0]]
        return self.members(wait) is None or bool(known["partial"].any())

    def timeout_seconds(self, wait: Wait) -> float | None:
        """Return the timeout in force on the group."""
        groups = self.run.groups
        named = (groups["group"] == wait.group.partition("[")[0]) & groups["rank"].isin(wait.waiters)
        known = groups[named]["timeout_seconds"].dropna()
        return float(known.iloc[0]) if len(known) else None

    def incident(
        self,
        name: str,
        wait: Wait,
        basis: Absence | Circle | Together | Slip | Surplus | Miscount,
        *,
        culprits: tuple[int, ...] = (),
        sites: Mapping[int, str],
        evidence: tuple[str, ...] = (),
        step: int | None = None,
        site: str | None = None,
        cause: str | None = None,
    ) -> Incident:
        """Return what an operation that did not end comes down to."""
        call = next(iter(self.calls_in(wait).values()), None)
        all_waiters = frozenset(rank for each in self.waits for rank in each.waiters)
        waiting = behind(self.waits, culprits) or all_waiters
        creation = wait.kind is WaitKind.CREATION
        return Incident(
            name=name,
            time_ns=wait.since_ns,
            basis=basis,
            culprits=culprits,
            victims=tuple(sorted(waiting - set(culprits))),
            group=None if creation else self.group(wait),
            members=None if creation else self.members(wait),
            seq=wait.number,
            op=wait.group if creation else call.op if call is not None else None,
            step=step,
            site=site,
            sites=sites,
            cause=cause,
            evidence=evidence,
        )
