"""What a standstill comes down to: somebody who did not come, a circle, or nobody's fault."""

from collections.abc import Iterator, Mapping, Sequence

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation.absence import absences
from distdiag.analyzers.investigation.counted import miscounted
from distdiag.analyzers.investigation.disagreements import disagreement
from distdiag.analyzers.investigation.halts import halts
from distdiag.analyzers.investigation.history import known_to_odd, known_to_others
from distdiag.analyzers.investigation.incident import Absence, Circle, Incident, Together, Unexplained
from distdiag.analyzers.investigation.issued import Issued, called, in_group
from distdiag.analyzers.investigation.lives import CONNECTION
from distdiag.analyzers.investigation.loops import Labels
from distdiag.analyzers.investigation.misaddressed import Misaddressed, misaddressed
from distdiag.analyzers.investigation.naming import Name
from distdiag.analyzers.investigation.paths import fork_line, shared_frames
from distdiag.analyzers.investigation.program import Programs
from distdiag.analyzers.investigation.scene import Scene
from distdiag.analyzers.investigation.sizes import EXCHANGES
from distdiag.analyzers.investigation.slips import slipped
from distdiag.analyzers.investigation.sources import recorded, unread
from distdiag.analyzers.investigation.streams import collectives_of
from distdiag.analyzers.investigation.waitfor import Standstill, Wait, WaitKind, standstill
from distdiag.events import NUMBER_UNKNOWN

TRANSPORT_STUCK = "transport-stuck"
ORDER_DEADLOCK = "order-deadlock"
P2P_DEADLOCK = "p2p-deadlock"
P2P_UNMATCHED = "p2p-unmatched"
GROUP_CREATION_STUCK = "group-creation-stuck"
WRONG_PARTNER = "wrong-partner"
"""Cause of an unmatched message that somebody else waits for."""
INSUFFICIENT = "insufficient-evidence"
SEND, RECEIVE = "send", "recv"


def standing(scene: Scene) -> tuple[Incident, ...]:
    """Return what the waiting comes down to, the longest waiting first."""
    if scene.then is not None and scene.then.doubt is not None:
        return (_doubtful(scene, scene.then.doubt),)
    found = standstill(scene.waits)
    stopped = {each.head.rank for each in scene.halted}
    roots = [*halts(scene), *absences(scene, found.sinks - stopped)]
    incidents = roots or list(_circle(scene, found)) or list(_rest(scene))
    return tuple(sorted(incidents, key=lambda incident: (incident.time_ns, incident.name, incident.culprits)))


def _doubtful(scene: Scene, doubt: str) -> Incident:
    ranks = tuple(sorted({rank for wait in scene.waits for rank in wait.waiters}))
    since_ns = min((wait.since_ns for wait in scene.waits), default=scene.end_ns)
    return Incident(name=INSUFFICIENT, time_ns=since_ns, basis=Unexplained(ranks=ranks, reason=doubt))


# ---- a circle ---------------------------------------------------------------------------------------------------
def _circle(scene: Scene, found: Standstill) -> Iterator[Incident]:
    cycle = found.cycle
    if not cycle:
        return
    miscount = miscounted(scene, cycle)
    if miscount is not None:
        yield miscount
        return
    wrong = misaddressed(scene, cycle)
    if wrong is not None:
        yield _sent_wrong(scene, cycle, wrong)
        return
    name, culprits = _named(cycle)
    if name == ORDER_DEADLOCK:
        left = _left_the_program(scene, cycle)
        if isinstance(left, Incident):
            yield left
            return
        culprits = left or culprits
    blamed = next((wait for wait in cycle if set(culprits) & wait.waiters), cycle[0])
    calls = {rank: call for wait in cycle for rank, call in scene.calls_in(wait).items()}
    sites = scene.sites_of(cycle)
    yield scene.incident(
        name,
        blamed,
        Circle(waits=cycle),
        culprits=culprits,
        step=calls[culprits[0]].step if culprits and culprits[0] in calls else None,
        site=_site(scene, calls, culprits) if culprits else None,
        sites=sites,
        evidence=tuple(_in_circle(scene, wait) for wait in cycle),
    )


def _left_the_program(scene: Scene, cycle: Sequence[Wait]) -> Incident | tuple[int, ...]:
    """Return what ranks of a circle did that most others, up to there alike, did not; only who, if it is their order.

    Whoever issues both calls elsewhere, as the others do, may have issued them in another order.
    """
    run, labels = scene.run, Labels(scene.run)
    collectives = collectives_of(run, scene.lives)
    blocked = {rank: call.start_ns for wait in scene.waits for rank, call in scene.calls_in(wait).items()}
    divergence = Programs(run, collectives, labels).odd_one(blocked)
    if divergence is None or not any(set(divergence.odd) & wait.waiters for wait in cycle):
        return ()
    if known_to_odd(divergence) and known_to_others(divergence):
        return divergence.odd
    return disagreement(run, divergence, labels, frozenset(blocked))


def _sent_wrong(scene: Scene, cycle: tuple[Wait, ...], wrong: Misaddressed) -> Incident:
    return scene.incident(
        P2P_UNMATCHED,
        wrong.wait,
        Circle(waits=cycle),
        culprits=(wrong.call.rank,),
        step=wrong.call.step,
        site=wrong.call.site,
        sites=scene.sites_of(cycle),
        cause=WRONG_PARTNER,
        evidence=(wrong.said, *(_in_circle(scene, wait) for wait in cycle)),
    )


def _site(scene: Scene, calls: Mapping[int, Issued], culprits: Sequence[int]) -> str | None:
    """Return the line at which the first culprit's call leaves those of the others; its own where they share all."""
    mine = calls.get(culprits[0])
    if mine is None:
        return None
    other = next((call.path for rank, call in calls.items() if rank not in culprits and call.path != mine.path), ())
    return fork_line(mine.path, other, shared_frames(scene.run.paths.values()))


def _named(cycle: Sequence[Wait]) -> tuple[str, tuple[int, ...]]:
    """Return the name of a circle and its culprits."""
    kinds = {wait.kind for wait in cycle}
    if kinds == {WaitKind.POINT_TO_POINT}:
        return P2P_DEADLOCK, tuple(sorted({rank for wait in cycle for rank in wait.waiters}))
    if WaitKind.CREATION in kinds:
        return GROUP_CREATION_STUCK, _minority(cycle)
    if WaitKind.POINT_TO_POINT in kinds:
        messages = [wait for wait in cycle if wait.kind is WaitKind.POINT_TO_POINT]
        return P2P_UNMATCHED, tuple(sorted({rank for wait in messages for rank in wait.absent}))
    return ORDER_DEADLOCK, _minority(cycle)


def _minority(cycle: Sequence[Wait]) -> tuple[int, ...]:
    """Return the ranks in the operation with strictly fewest waiters, none at a tie."""
    ordered = sorted(cycle, key=lambda wait: len(wait.waiters))
    if len(ordered) > 1 and len(ordered[0].waiters) == len(ordered[1].waiters):
        return ()
    return tuple(sorted(ordered[0].waiters))


def _in_circle(scene: Scene, wait: Wait) -> str:
    call = next(iter(scene.calls_in(wait).values()), None)
    what = f"{wait.group} number {wait.number}"
    if call is not None:
        what = f"{called(call.op, call.seq)} of {in_group(scene.group(wait))}"
    return (
        f"{named(wait.waiters)} {verb(wait.waiters, 'is', 'are')} in {what} "
        f"and {verb(wait.waiters, 'needs', 'need')} {named(wait.absent)}"
    )


# ---- nobody's fault ---------------------------------------------------------------------------------------------
def _rest(scene: Scene) -> Iterator[Incident]:
    waits = sorted((wait for wait in scene.waits if not wait.any_of), key=lambda wait: (wait.since_ns, wait.group))
    unknown = [wait for wait in waits if wait.unknown]
    full = [wait for wait in waits if not wait.absent]
    slip = slipped(scene, waits)
    if slip is not None:
        yield slip
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
            "all members issued it with equal arguments, and no rank waits for one that did not come",
            *_not_begun(scene, wait),
            *_splits_untold(scene, wait),
        ),
    )


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
