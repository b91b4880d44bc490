"""Which operations never ended, who was blocked in them, and which of their members did not come."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers.investigation.joining import INIT, OWN_STORE
from distdiag.analyzers.investigation.lives import Life, before_failure
from distdiag.analyzers.investigation.message_waits import deadline_ns, message_waits
from distdiag.analyzers.investigation.queues import is_queued
from distdiag.analyzers.investigation.rows import by_rank, records, whole
from distdiag.analyzers.investigation.stores import awaited_in, came_to_store, unanswered_in
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind
from distdiag.run import Run

NEW_GROUP = "new_group"
CREATIONS = (INIT, OWN_STORE, NEW_GROUP)
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Ops that some members may complete although others never came."""


def blocked_calls(run: Run, lives: Mapping[int, Life]) -> pd.DataFrame:
    """Return the calls that ranks were blocked in when they failed or their logs ended; none that a device runs."""
    return run.calls[_blocking(run, lives)]


def blocked_since(blocked: pd.DataFrame) -> Mapping[int, int]:
    """Return since when each blocked rank was."""
    return by_rank(blocked.groupby("rank")["start_ns"].min())


def waits_of(run: Run, lives: Mapping[int, Life], blocked: pd.DataFrame) -> tuple[Wait, ...]:
    """Return every operation that never ended, with who was blocked in it and who did not come."""
    return (
        *_collective_waits(run, blocked[~blocked["p2p"]]),
        *message_waits(run, blocked[blocked["p2p"]]),
        *_creation_waits(run, lives),
    )


def _blocking(run: Run, lives: Mapping[int, Life]) -> npt.NDArray[np.bool_]:
    """Return which calls held their rank: those that failed for good, else those it was still waiting in."""
    calls = run.calls
    held = ~is_queued(run)
    blocking = calls["failed"].to_numpy() & before_failure(calls, lives) & held
    failures = {rank: life.failed_ns for rank, life in lives.items() if life.failed_ns is not None}
    for row in np.flatnonzero(blocking):
        failed_ns = failures.get(int(calls["rank"].iloc[row]))
        blocking[row] = failed_ns is not None and (whole(calls["end_ns"].iloc[row]) or 0) >= failed_ns
    pending = np.flatnonzero((calls["end_ns"].isna() & ~calls["failed"] & ~calls["captured"]).to_numpy() & held)
    pending = pending[~np.isin(calls["rank"].to_numpy()[pending], list(failures))]
    blocking[pending] = _hold(run, calls.iloc[pending])
    return blocking


def _hold(run: Run, pending: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return whether a rank was waiting in each of its calls without end, and not merely left it in flight."""
    if pending.empty:
        return np.zeros(0, dtype=bool)
    pulses = {int(row.rank): row for row in records(run.pulses.sort_values("time_ns", kind="stable"))}
    calls = run.calls.loc[run.calls["rank"].isin(pending["rank"]), ["rank", "thread", "call"]]
    last: Any = calls.groupby(["rank", "thread"], observed=True)["call"].max()
    return np.array([_holds(call, pulses.get(int(call.rank)), last) for call in records(pending)], dtype=bool)


def _holds(call: Any, pulse: Any, last: Any) -> bool:
    if pulse is None or pulse.time_ns < call.start_ns:
        return bool(last[(call.rank, call.thread)] == call.call)
    if len(pulse.waiting):
        return call.call in pulse.waiting
    return bool(call.thread != "MainThread" or pd.isna(pulse.path) or pulse.path == call.path)


def _collective_waits(run: Run, blocked: pd.DataFrame) -> Iterator[Wait]:
    if blocked.empty:
        return
    calls = run.calls
    counted = ~(calls["p2p"] | calls["captured"]).to_numpy(dtype=bool)
    wanted = np.unique(_operation_keys(blocked))
    matching = calls[counted & np.isin(_operation_keys(calls), wanted)]
    held = set(zip(blocked["rank"].tolist(), blocked["call"].tolist(), strict=True))
    numbers = calls.loc[counted, ["group_key", "rank", "seq"]]
    firsts = numbers.groupby(["group_key", "rank"], observed=True)["seq"].min()
    for (key, seq), rows in matching.groupby(["group_key", "seq"], observed=True):
        wait = _collective_wait(run, str(key), int(str(seq)), rows, held, firsts)
        if wait is not None:
            yield wait


def _operation_keys(calls: pd.DataFrame) -> npt.NDArray[np.int64]:
    groups = calls["group_key"].cat.codes.to_numpy().astype(np.int64)
    return np.asarray((groups << 40) + calls["seq"].to_numpy())


def _collective_wait(
    run: Run, key: str, seq: int, rows: pd.DataFrame, held: set[tuple[int, int]], firsts: "pd.Series[int]"
) -> Wait | None:
    mine = [(rank, call) in held for rank, call in zip(rows["rank"].tolist(), rows["call"].tolist(), strict=True)]
    blocked = rows[mine]
    left = blocked[blocked["failed"] & blocked["end_ns"].notna()].sort_values("end_ns", kind="stable")
    given_up_ns = int(left["end_ns"].iloc[0]) if len(left) else None
    came = rows if given_up_ns is None else rows[rows["start_ns"] <= _deadline_of(run, key, left)]
    waiters = frozenset(blocked["rank"]) & frozenset(came["rank"])
    completed = bool((came["end_ns"].notna() & ~came["failed"]).any())
    members = frozenset(rows["members"].iloc[0] or ())
    # A log that begins later than this call cannot tell whether its rank was there.
    unseen = {rank for rank in members if (key, rank) in firsts.index and firsts[(key, rank)] > seq}
    absent = members - frozenset(came["rank"]) - unseen
    op = str(rows["op"].iloc[0])
    if not waiters or (completed and not (absent and op in ROOTED)):
        return None
    logged = frozenset(run.ranks).difference(run.quality.cut_ranks)
    return Wait(
        kind=WaitKind.COLLECTIVE,
        group=key,
        number=seq,
        waiters=waiters,
        absent=absent & logged,
        unknown=absent - logged,
        since_ns=int(blocked["start_ns"].min()),
        given_up_ns=given_up_ns,
        waited_ns=None if given_up_ns is None else given_up_ns - int(left["start_ns"].iloc[0]),
    )


def _deadline_of(run: Run, key: str, left: pd.DataFrame) -> int:
    """Return until when others could come: until the first of those that left had to leave."""
    groups = run.groups
    named = (groups["group"] == key.partition("[")[0]) & groups["rank"].isin(left["rank"])
    timeout = float(groups[named]["timeout_seconds"].min())
    return min(deadline_ns(timeout, int(row.start_ns), int(row.end_ns)) for row in records(left))


def _creation_waits(run: Run, lives: Mapping[int, Life]) -> Iterator[Wait]:
    for phase in CREATIONS:
        begun = _begun(run, phase)
        for index in sorted({index for by_index in begun.values() for index in by_index}):
            wait = _creation_wait(run, lives, phase, index, begun)
            if wait is not None:
                yield wait


@dataclass(frozen=True, slots=True)
class _Creation:
    begin_ns: int
    end_ns: int | None
    failed: bool


def _begun(run: Run, phase: str) -> Mapping[int, Mapping[int, _Creation]]:
    """Return per rank and index when it asked for a group and when it came out again."""
    mine = run.phases[(run.phases["phase"] == phase) & ~run.phases["local"]]
    if phase == OWN_STORE:  # others are for some ranks only, and nothing tells for which
        mine = mine[(mine["edge"] == "end") | (mine["world_size"] == run.world_size).fillna(value=False)]
    ends = {
        (int(row.rank), int(row.number)): (int(row.time_ns), bool(row.failed))
        for row in records(mine[mine["edge"] == "end"])
    }
    begun: dict[int, dict[int, _Creation]] = {}
    for row in records(mine[mine["edge"] == "begin"].sort_values(["rank", "time_ns"])):
        of_rank = begun.setdefault(int(row.rank), {})
        end_ns, failed = ends.get((int(row.rank), int(row.number)), (None, False))
        of_rank[len(of_rank)] = _Creation(int(row.time_ns), end_ns, failed)
    return begun


def _creation_wait(
    run: Run, lives: Mapping[int, Life], phase: str, index: int, begun: Mapping[int, Mapping[int, _Creation]]
) -> Wait | None:
    here = {rank: by_index[index] for rank, by_index in begun.items() if index in by_index}
    stuck = {
        rank: each for rank, each in here.items() if each.end_ns is None or (each.failed and _final(lives[rank], each))
    }
    if not stuck:
        return None
    failures = [(each.end_ns, each.end_ns - each.begin_ns) for each in stuck.values() if each.end_ns is not None]
    given_up_ns, waited_ns = min(failures, default=(None, None))
    came = {rank for rank, each in here.items() if given_up_ns is None or each.begin_ns <= given_up_ns}
    world = frozenset(range(run.world_size)) if run.world_size else frozenset(run.ranks)
    logged = frozenset(run.ranks)
    turned_away = _turned_away(run, phase, world)
    if turned_away:  # the store counted the others, whenever that was
        came = set(here) - turned_away
    # Nobody gets through the very first meeting without all ranks: those without a log never came.
    first_meeting = phase != NEW_GROUP and len(stuck) == len(here)
    never_came, unknown = _unlogged(run, phase, world, first_meeting=first_meeting)
    return Wait(
        kind=WaitKind.CREATION,
        group=phase,
        number=index,
        waiters=frozenset(stuck) & frozenset(came),
        absent=(world & logged) - came | never_came,
        unknown=unknown,
        since_ns=min(each.begin_ns for each in stuck.values()),
        given_up_ns=given_up_ns,
        waited_ns=waited_ns,
    )


def _turned_away(run: Run, phase: str, world: frozenset[int]) -> frozenset[int]:
    """Return the ranks that found no store, where they are just those that did not come to it."""
    if phase == NEW_GROUP:
        return frozenset()
    counts = _counts(run, phase)
    unanswered = frozenset(unanswered_in(run)) & world
    return unanswered if counts and len(unanswered) + max(counts) == len(world) else frozenset()


def _counts(run: Run, phase: str) -> list[int]:
    """Return how many ranks came to the making of a group, as often as anything tells that."""
    counts = [int(count) for count in run.phases[run.phases["phase"] == phase]["came"].dropna()]
    at_store = came_to_store(run) if phase != NEW_GROUP else None
    return counts if at_store is None else [*counts, at_store]


def _unlogged(
    run: Run, phase: str, world: frozenset[int], *, first_meeting: bool
) -> tuple[frozenset[int], frozenset[int]]:
    """Return which ranks without a log did not come to the making of a group, and of which nobody can say."""
    unlogged, nobody = world - frozenset(run.ranks), frozenset[int]()
    counts = _counts(run, phase)
    # Without the first rank there is no store to wait at, unless a launcher holds it.
    awaited = unlogged.intersection(awaited_in(run).values()) - {0} if first_meeting else nobody
    if not counts and not awaited:
        return (unlogged, nobody) if first_meeting else (nobody, unlogged)
    missing = len(world) - max(counts) if counts else len(unlogged)
    if missing <= 0:
        return nobody, nobody
    if counts and len(unlogged) <= missing:
        return unlogged, nobody
    return awaited, nobody if counts and len(awaited) == missing else unlogged - awaited


def _final(life: Life, creation: _Creation) -> bool:
    return life.failed_ns is not None and creation.end_ns is not None and creation.end_ns >= life.failed_ns
