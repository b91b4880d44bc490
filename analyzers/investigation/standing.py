"""What a standstill comes down to: somebody who did not come, a circle, or nobody's fault."""

from collections.abc import Iterator, Mapping

import pandas as pd

from distdiag.analyzers._wording import counted, named, verb
from distdiag.analyzers.investigation.absence import absences
from distdiag.analyzers.investigation.circles import (
    GROUP_CREATION_STUCK,
    P2P_DEADLOCK,
    circle,
    from_anybody,
    out_of_data,
)
from distdiag.analyzers.investigation.incident import Absence, Circle, Halts, Incident, Surplus, Together, Unexplained
from distdiag.analyzers.investigation.issued import called, group_name, in_group, issued
from distdiag.analyzers.investigation.joining import INIT, where_joined
from distdiag.analyzers.investigation.lives import CONNECTION, Life
from distdiag.analyzers.investigation.naming import Name
from distdiag.analyzers.investigation.paths import location
from distdiag.analyzers.investigation.rows import records
from distdiag.analyzers.investigation.scene import Scene
from distdiag.analyzers.investigation.sizes import EXCHANGES
from distdiag.analyzers.investigation.slips import slipped
from distdiag.analyzers.investigation.sources import recorded, unread
from distdiag.analyzers.investigation.stores import awaited_in, refused_in
from distdiag.analyzers.investigation.tallies import narrowed
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind, behind, standstill
from distdiag.events import NUMBER_UNKNOWN
from distdiag.run import Run

TRANSPORT_STUCK = "transport-stuck"
INSUFFICIENT = "insufficient-evidence"
DEVICE_STUCK = "device-stuck"
SEND, RECEIVE = "send", "recv"
MOST_PLACES = 4
"""Addresses named in a sentence."""


def standing(scene: Scene) -> tuple[Incident, ...]:
    """Return what the waiting comes down to, the longest waiting first."""
    if scene.then is not None and scene.then.doubt is not None:
        return (_doubtful(scene, scene.then.doubt),)
    scene.waits = narrowed(scene)
    found = standstill(scene.waits)
    stopped = {each.head.rank for each in scene.halted}
    roots = [*halts(scene), *absences(scene, found.sinks - stopped)]
    if roots and not any(isinstance(each.basis, Halts | Surplus) for each in roots):
        short = out_of_data(scene, found)
        roots = roots if short is None else [short]
    incidents = roots or list(circle(scene, found)) or list(_rest(scene))
    return tuple(sorted(incidents, key=lambda incident: (incident.time_ns, incident.name, incident.culprits)))


def _doubtful(scene: Scene, doubt: str) -> Incident:
    ranks = tuple(sorted({rank for wait in scene.waits for rank in wait.waiters}))
    since_ns = min((wait.since_ns for wait in scene.waits), default=scene.end_ns)
    return Incident(name=INSUFFICIENT, time_ns=since_ns, basis=Unexplained(ranks=ranks, reason=doubt))


def _rest(scene: Scene) -> Iterator[Incident]:
    waits = sorted((wait for wait in scene.waits if not wait.any_of), key=lambda wait: (wait.since_ns, wait.group))
    unknown = [wait for wait in waits if wait.unknown]
    full = [wait for wait in waits if not wait.absent]
    slip, asked = slipped(scene, waits), from_anybody(scene)
    if slip is not None:
        yield slip
    elif asked is not None:
        yield asked
    elif unknown:
        yield _unknown(scene, unknown[0])
    elif full and scene.may_have_more(full[0]):
        yield _untold(full[0], f"{_waiting_in(scene, full[0])}, and nothing tells who else belongs to it")
    elif full and _numbers_unknown(scene, full[0]):
        yield _untold(full[0], f"{_waiting_in(scene, full[0])}, and nothing tells whether it is the same call")
    elif full:
        yield _all_in(scene, full[0])
    elif not waits and _all_of_one_kind(scene):
        yield _one_sided(scene)


def _unknown(scene: Scene, wait: Wait) -> Incident:
    they = verb(wait.unknown, "it", "they")
    said = [scene.lives[rank].failure or "" for rank in sorted(wait.waiters) if rank in scene.lives]
    broke = any(CONNECTION.search(text) for text in said)
    return scene.incident(
        INSUFFICIENT,
        wait,
        Absence(wait=wait, places=(), until_ns=scene.until_ns(wait)),
        sites=scene.sites_of([wait]),
        evidence=(
            f"{unread(scene.run, sorted(wait.unknown))}: whether {they} came is not known",
            *(("connections broke: some rank that they lead to had ended",) if broke else ()),
        ),
    )


def _all_of_one_kind(scene: Scene) -> bool:
    """Return whether all ranks wait in messages of one kind: then some of them wait for one another."""
    ops = {call.op for wait in scene.waits for call in scene.calls_in(wait).values()}
    waiting = {rank for wait in scene.waits for rank in wait.waiters}
    return waiting == set(scene.run.ranks) and not scene.run.missing and ops in ({SEND}, {RECEIVE})


def _one_sided(scene: Scene) -> Incident:
    op = next(call.op for call in scene.calls_in(scene.waits[0]).values())
    return scene.incident(
        P2P_DEADLOCK,
        scene.waits[0],
        Circle(waits=tuple(scene.waits)),
        sites=scene.sites_of(scene.waits),
        evidence=(f"every rank is in {op} and none in its counterpart; with whom, nothing tells",),
    )


def _waiting_in(scene: Scene, wait: Wait) -> str:
    call = next(iter(scene.calls_in(wait).values()), None)
    what = called(call.op, call.seq) if call is not None else wait.group
    return f"{named(wait.waiters)} {verb(wait.waiters, 'waits', 'wait')} in {what} of {in_group(scene.group(wait))}"


def _numbers_unknown(scene: Scene, wait: Wait) -> bool:
    """Return whether ranks are in calls that have a line but no number: a line issues many calls, on many groups."""
    unnumbered = wait.kind is WaitKind.COLLECTIVE and wait.number == NUMBER_UNKNOWN and not _raced(scene, wait)
    return unnumbered and any(call.path for call in scene.calls_in(wait).values())


def _untold(wait: Wait, reason: str) -> Incident:
    ranks = tuple(sorted(wait.waiters))
    return Incident(name=INSUFFICIENT, time_ns=wait.since_ns, basis=Unexplained(ranks=ranks, reason=reason))


def _all_in(scene: Scene, wait: Wait) -> Incident:
    name: str = TRANSPORT_STUCK
    if wait.kind is WaitKind.CREATION:
        name = GROUP_CREATION_STUCK
    elif _raced(scene, wait):
        name = Name.THREADS
    return scene.incident(
        name,
        wait,
        Together(wait=wait),
        step=next((call.step for call in scene.calls_in(wait).values()), None),
        sites=scene.sites_of([wait]),
        evidence=(
            *_joined_alike(scene, wait),
            *_not_begun(scene, wait),
            *_splits_untold(scene, wait),
        ),
    )


def _joined_alike(scene: Scene, wait: Wait) -> Iterator[str]:
    """Yield what shows that nobody is missing, and what may still tell the members apart."""
    nobody = "no rank waits for one that did not come"
    places = where_joined(scene.run) if wait.kind is WaitKind.CREATION else {}
    if len(places) > 1:
        told = ", ".join(f"{named(ranks)} {place}" for place, ranks in list(places.items())[:MOST_PLACES])
        yield f"{nobody}, but they name different addresses, which may be of one host: {told}"
    else:
        yield f"all members issued it with equal arguments, and {nobody}"
    awaited = awaited_in(scene.run) if wait.kind is WaitKind.CREATION else {}
    for missing in sorted(set(awaited.values()) - {0}):  # the first rank holds the store, and waits for all there
        who = [rank for rank, other in awaited.items() if other == missing]
        yield f"{named(who)} waited for what rank {missing} leaves in the store"


def _not_begun(scene: Scene, wait: Wait) -> Iterator[str]:
    """Yield whose devices had begun an operation and whose had not, where their backends tell."""
    statuses = scene.run.statuses
    told = statuses[statuses["last_started"].notna() & statuses["rank"].isin(wait.waiters)]
    told = told[told["group"] == wait.group.partition("[")[0]]
    begun = set(told[told["last_started"] >= wait.number]["rank"])
    others = set(told["rank"]) - begun
    if begun and others and wait.kind is WaitKind.COLLECTIVE:
        yield f"the devices of {named(begun)} had begun it, those of {named(others)} had not"


def _splits_untold(scene: Scene, wait: Wait) -> Iterator[str]:
    rows = scene.rows_of(wait)
    untold = rows["op"].isin(EXCHANGES) & (rows["input_splits"].map(len) == 0)
    if untold.any() and not rows["rank"].isin(recorded(scene.run)).any():
        yield "how much goes from whom to whom is not told here: splits that do not fit would look the same"


def _raced(scene: Scene, wait: Wait) -> bool:
    """Return whether two threads had calls in flight on this group: record and enqueue are not one act."""
    calls = scene.run.calls
    of_group = calls[(calls["group_key"] == wait.group) & ~calls["p2p"]]
    unfinished = of_group[of_group["end_ns"].isna() | of_group["failed"]]
    several = unfinished.groupby("rank", observed=True)["thread"].nunique()
    return bool((several > 1).any()) or bool(unfinished["contended"].any())


def halts(scene: Scene) -> Iterator[Incident]:
    """Yield one incident for all devices that stopped, the first one's operation named."""
    if not scene.halted:
        return
    first = min(scene.halted, key=lambda each: (each.head.since_ns, each.head.rank))
    culprits = tuple(each.head.rank for each in scene.halted)
    rows = scene.run.calls
    wanted = {(each.head.rank, each.head.call) for each in scene.halted}
    mine = rows[rows["rank"].isin(culprits) & rows["call"].isin([call for _, call in wanted])]
    calls = {int(row.rank): issued(scene.run, row) for row in records(mine) if (int(row.rank), int(row.call)) in wanted}
    call = calls[first.head.rank]
    sites = {rank: each.site for rank, each in calls.items() if each.site is not None}
    sites |= scene.sites_of(scene.waits)
    yield Incident(
        name=DEVICE_STUCK,
        time_ns=first.head.since_ns,
        basis=Halts(halted=scene.halted),
        culprits=culprits,
        victims=tuple(sorted(behind(scene.waits, culprits))),
        group=group_name(scene.run, first.head.group.partition("[")[0], first.head.members),
        members=first.head.members,
        seq=first.head.seq,
        op=first.head.op,
        step=call.step,
        site=call.site,
        sites=sites,
        evidence=tuple(
            f"rank {each.head.rank} did not complete {each.head.op} {each.head.seq}; {named(each.completed_by)} "
            f"completed it and {counted(each.behind - 1, 'more call')} of that group"
            for each in scene.halted[:4]
        ),
    )


def refused(run: Run, lives: Mapping[int, Life]) -> Iterator[Incident]:
    """Yield that ranks read addresses of processes that are gone, which a store kept over a restart."""
    found = {rank: at for rank, at in refused_in(run).items() if lives[rank].failed_ns is not None}
    if not found:
        return
    failed = {rank: lives[rank].failed_ns or 0 for rank in found}
    first = min(failed, key=lambda rank: (failed[rank], rank))
    begun = run.phases[(run.phases["phase"] == INIT) & (run.phases["edge"] == "begin")]
    came = set(begun[begun["time_ns"] <= failed[first]]["rank"])
    later = sorted(set(run.ranks) - came)
    if not later and len(found) < len(run.ranks):
        return  # who is gone may have been there
    left = f"attempt {run.attempt - 1}" if run.attempt else "processes that are gone"
    since = f"before {named(later)} had begun to join" if later else "as all others were at theirs"
    yield Incident(
        name=GROUP_CREATION_STUCK,
        time_ns=failed[first],
        basis=Unexplained(
            ranks=tuple(found),
            reason=f"rank {first} found an address in the store at which nobody listens, {found[first]}\n"
            f"It was refused there {since}: the store still holds what {left} left in it.",
        ),
        victims=tuple(run.ranks),
        op=INIT,
        sites={rank: location(path[-1]) for rank, path in _paths_of(run, begun).items() if path},
        evidence=tuple(f"rank {rank} was refused at {at}" for rank, at in found.items())[:MOST_PLACES],
    )


def _paths_of(run: Run, phases: pd.DataFrame) -> Mapping[int, tuple[str, ...]]:
    known = phases[phases["path"].notna()]
    return {int(rank): run.paths.get(int(path), ()) for rank, path in zip(known["rank"], known["path"], strict=True)}
