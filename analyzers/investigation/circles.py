"""Ranks that wait for one another in a circle: whose doing it is, or that it is everybody's."""

from collections.abc import Iterator, Mapping, Sequence

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation.counted import miscounted
from distdiag.analyzers.investigation.disagreements import disagreement
from distdiag.analyzers.investigation.history import known_to_odd, known_to_others
from distdiag.analyzers.investigation.incident import Circle, Incident
from distdiag.analyzers.investigation.issued import Issued, called, in_group
from distdiag.analyzers.investigation.loops import Labels
from distdiag.analyzers.investigation.microbatches import Uneven, uneven
from distdiag.analyzers.investigation.naming import Name
from distdiag.analyzers.investigation.paths import Frames, fork_line, shared_frames
from distdiag.analyzers.investigation.program import Programs
from distdiag.analyzers.investigation.scene import Scene
from distdiag.analyzers.investigation.tallies import Misaddressed, Tally, awaited, differing, misaddressed
from distdiag.analyzers.investigation.waitfor import Standstill, Wait, WaitKind

ORDER_DEADLOCK = "order-deadlock"
P2P_DEADLOCK = "p2p-deadlock"
P2P_UNMATCHED = "p2p-unmatched"
GROUP_CREATION_STUCK = "group-creation-stuck"
WRONG_PARTNER = "wrong-partner"
"""Cause of an unmatched message that somebody else waits for."""
MICRO_BATCHES = "micro-batches"
"""Cause of one of a stage that runs more or fewer micro-batches than the others."""
TOO_MANY, LEFT_OUT = "message-too-many", "message-left-out"
"""Causes where the steps before tell which side differs."""
MOST_TOLD = 3
"""Operations that are told of ranks whose data ended, and of those whose data went on."""
FROM_ANY = "from-any-rank"
"""Cause where a rank waits for a message from any, nobody has one left, and nothing tells whose it is."""


def circle(scene: Scene, found: Standstill) -> Iterator[Incident]:
    """Yield what a circle of waits comes down to, if there is one."""
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
    stages = uneven(scene, cycle)
    if stages is not None:
        yield _of_stages(scene, cycle, stages)
        return
    tally = differing(scene, cycle)
    if tally is not None:
        yield _against_before(scene, cycle, (tally,), (tally.said, *(_in_circle(scene, wait) for wait in cycle)))
        return
    name, culprits = _named(scene, cycle)
    if name == ORDER_DEADLOCK:
        left = _left_the_program(scene, cycle)
        if isinstance(left, Incident):
            yield left
            return
        short = out_of_data(scene, found)
        if short is not None:
            yield short
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
        site=(_site(scene, calls, culprits) or sites.get(culprits[0])) if culprits else None,
        sites=sites,
        evidence=tuple(_in_circle(scene, wait) for wait in cycle),
    )


def out_of_data(scene: Scene, found: Standstill) -> Incident | None:
    """Return that the data of ranks ended at which the waiting ends, while that of ranks that wait went on."""
    if not scene.run.batches["exhausted"].any():  # nor need thousands of calls be looked up
        return None
    calls = {rank: call for wait in scene.waits for rank, call in scene.calls_in(wait).items()}
    moments = {rank: call.start_ns for rank, call in calls.items()} | dict.fromkeys(found.sinks, scene.end_ns)
    taken = Labels(scene.run).epochs.apart(moments)
    if not taken:
        return None
    *short, (most, more) = taken.items()
    fewer = {rank for _, ranks in short for rank in ranks}
    inside = frozenset[int]().union(*(wait.waiters for wait in found.cycle))
    if not (fewer & (found.sinks or inside) and found.sinks <= fewer and calls.keys() & set(more)):
        return None
    waits = tuple(sorted(scene.waits, key=lambda wait: (not wait.waiters & set(more), wait.since_ns, wait.group)))
    sites = scene.sites_of(waits)
    culprits = min((tuple(sorted(fewer)), more), key=len) if len(fewer) != len(more) else ()
    had = ", ".join(f"{named(ranks)} had data for {number}" for number, ranks in short)
    blamed = next((rank for rank in (*culprits, *more) if rank in calls), None)
    return scene.incident(
        Name.UNEVEN,
        waits[0],
        Circle(waits=waits),
        culprits=culprits,
        step=None if blamed is None else calls[blamed].step,
        site=sites.get(culprits[0]) if culprits else None,
        sites=sites,
        evidence=(
            f"{had} of the {most} batches that {named(more)} took",
            *(_in_circle(scene, wait) for wait in waits[:MOST_TOLD]),
        ),
    )


def _left_the_program(scene: Scene, cycle: Sequence[Wait]) -> Incident | tuple[int, ...]:
    """Return what ranks of a circle did that most others, up to there alike, did not; only who, if it is their order.

    Whoever issues both calls elsewhere, as the others do, may have issued them in another order.
    """
    run, labels = scene.run, Labels(scene.run)
    blocked = {rank: call.start_ns for wait in scene.waits for rank, call in scene.calls_in(wait).items()}
    divergence = Programs(run, scene.collectives, labels).odd_one(blocked)
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


def _of_stages(scene: Scene, cycle: tuple[Wait, ...], stages: Uneven) -> Incident:
    culprits = () if stages.odd is None else (stages.odd,)
    sites = scene.sites_of(scene.waits)
    before = () if stages.before is None else (f"in the step before, all of them issued {stages.before}",)
    return scene.incident(
        P2P_UNMATCHED,
        next((wait for wait in cycle if wait.waiters & set(culprits)), cycle[0]),
        Circle(waits=cycle),
        culprits=culprits,
        step=stages.step,
        site=sites.get(culprits[0]) if culprits else None,
        sites=sites,
        cause=MICRO_BATCHES,
        evidence=(stages.said, *before, *(_in_circle(scene, wait) for wait in cycle)),
    )


def from_anybody(scene: Scene) -> Incident | None:
    """Return what a receive from any rank comes down to for which nobody has a message left."""
    found = awaited(scene)
    if found is None:
        return None
    circle = (found.wait, *(wait for wait in scene.waits if wait is not found.wait))
    if found.odd:
        return _against_before(scene, circle, found.odd, found.evidence)
    sites = scene.sites_of(circle)
    return scene.incident(
        P2P_UNMATCHED,
        found.wait,
        Circle(waits=circle),
        step=found.step,
        site=sites.get(found.rank),
        sites=sites,
        cause=FROM_ANY,
        evidence=(f"rank {found.rank} waits for a message from any rank", *found.evidence),
    )


def _against_before(
    scene: Scene, cycle: Sequence[Wait], tallies: Sequence[Tally], evidence: tuple[str, ...]
) -> Incident:
    culprits, sites = tuple(sorted({tally.rank for tally in tallies})), scene.sites_of(cycle)
    return scene.incident(
        P2P_UNMATCHED,
        tallies[0].wait,
        Circle(waits=tuple(cycle)),
        culprits=culprits,
        step=tallies[0].step,
        site=sites.get(culprits[0]),
        sites=sites,
        cause=TOO_MANY if tallies[0].too_many else LEFT_OUT,
        evidence=evidence,
    )


def _site(scene: Scene, calls: Mapping[int, Issued], culprits: Sequence[int]) -> str | None:
    """Return the line at which the first culprit's call leaves those of the others; its own where they share all."""
    mine = calls.get(culprits[0])
    if mine is None:
        return None
    other = next((call.path for rank, call in calls.items() if rank not in culprits and call.path != mine.path), ())
    return fork_line(mine.path, other, shared_frames(scene.run.paths.values()))


def _named(scene: Scene, cycle: Sequence[Wait]) -> tuple[str, tuple[int, ...]]:
    """Return the name of a circle and its culprits."""
    kinds = {wait.kind for wait in cycle}
    if kinds == {WaitKind.POINT_TO_POINT}:
        return P2P_DEADLOCK, tuple(sorted({rank for wait in cycle for rank in wait.waiters}))
    if WaitKind.CREATION in kinds:
        return GROUP_CREATION_STUCK, _minority(scene, cycle)
    if WaitKind.POINT_TO_POINT in kinds:
        messages = [wait for wait in cycle if wait.kind is WaitKind.POINT_TO_POINT]
        return P2P_UNMATCHED, tuple(sorted({rank for wait in messages for rank in wait.absent}))
    return ORDER_DEADLOCK, _minority(scene, cycle)


def _minority(scene: Scene, cycle: Sequence[Wait]) -> tuple[int, ...]:
    """Return the ranks in the operation with strictly fewest of them, none at a tie.

    Who is at the same line in a group of the same kind stands on the same side, though outside the circle.
    """
    sides: dict[tuple[str, str, Frames], set[int]] = {}
    for wait in scene.waits:
        for kind in _kinds(scene, wait):
            sides.setdefault(kind, set()).update(wait.waiters)
    distinct = len({kind for wait in cycle for kind in _kinds(scene, wait)}) == len(cycle)
    ordered = sorted(
        (wait.waiters.union(*(sides[kind] for kind in _kinds(scene, wait) if distinct)) for wait in cycle), key=len
    )
    if len(ordered) > 1 and len(ordered[0]) == len(ordered[1]):
        return ()
    return tuple(sorted(ordered[0]))


def _kinds(scene: Scene, wait: Wait) -> set[tuple[str, str, Frames]]:
    return {(scene.group(wait), call.op, call.path) for call in scene.calls_in(wait).values()}


def _in_circle(scene: Scene, wait: Wait) -> str:
    call = next(iter(scene.calls_in(wait).values()), None)
    what = f"{wait.group} number {wait.number}"
    if call is not None:
        what = f"{called(call.op, call.seq)} of {in_group(scene.group(wait))}"
    return (
        f"{named(wait.waiters)} {verb(wait.waiters, 'is', 'are')} in {what} "
        f"and {verb(wait.waiters, 'needs', 'need')} {named(wait.absent)}"
    )
