"""Ranks that others wait for and that wait for nobody: late, missing, or right to be gone."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from distdiag.analyzers._wording import counted, named, seconds
from distdiag.analyzers.investigation.incident import Absence, Incident, Surplus
from distdiag.analyzers.investigation.lives import End
from distdiag.analyzers.investigation.loops import Labels
from distdiag.analyzers.investigation.message_waits import message_arrival
from distdiag.analyzers.investigation.naming import Name
from distdiag.analyzers.investigation.paths import own_line
from distdiag.analyzers.investigation.scene import Scene
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind, behind, waiting_on
from distdiag.analyzers.investigation.whereabouts import Whereabouts, whereabouts

RANK_MISSING = "rank-missing"
LATE_RANK = "late-rank"
EXITED, UNKNOWN = "exited", "unknown"
MAX_PLACES = 64
"""So many ranks are looked at one by one; that more are absent each for a reason of its own is not believable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Absent:
    """One rank that did not come."""

    rank: int
    wait: Wait
    place: Whereabouts | None
    arrived_ns: int | None

    @property
    def name(self) -> str:
        late = self.arrived_ns is not None or (self.place is not None and self.place.phase is not None)
        return LATE_RANK if late else RANK_MISSING

    @property
    def cause(self) -> str:
        return UNKNOWN if self.place is None else self.place.cause


def absences(scene: Scene, sinks: Iterable[int]) -> Iterator[Incident]:
    """Yield one incident for all ranks that one operation lacks, or that are absent for the same reason."""
    absent = [_look_at(scene, rank, closely=n < MAX_PLACES) for n, rank in enumerate(sorted(sinks))]
    surplus = _surplus(scene, absent)
    if surplus is not None:
        yield surplus
        return
    together: list[list[_Absent]] = []
    for each in absent:
        group = next((group for group in together if _belongs(each, group)), None)
        if group is None:
            together.append([each])
        else:
            group.append(each)
    for group in together:
        yield _absence(scene, group)


def _belongs(absent: _Absent, group: Sequence[_Absent]) -> bool:
    return any(absent.name == each.name and (absent.wait == each.wait or absent.cause == each.cause) for each in group)


def _look_at(scene: Scene, rank: int, *, closely: bool) -> _Absent:
    wait = waiting_on(scene.waits, (rank,))[0]
    life = scene.lives.get(rank)
    place = None
    if life is not None and (closely or life.end is End.ORDERLY):
        place = whereabouts(scene.run, life, wait.since_ns, scene.until_ns(wait))
    return _Absent(rank=rank, wait=wait, place=place, arrived_ns=_arrival(scene, wait, rank))


def _arrival(scene: Scene, wait: Wait, rank: int) -> int | None:
    """Return when a rank came after all, its waiters having given up."""
    if wait.kind is WaitKind.POINT_TO_POINT and scene.then is not None:
        return message_arrival(scene.run, wait, rank)
    if wait.kind is not WaitKind.COLLECTIVE or (wait.given_up_ns is None and scene.then is None):
        return wait.arrived_ns
    rows = scene.rows_of(wait)
    came = rows[rows["rank"] == rank]
    return int(came["start_ns"].iloc[0]) if len(came) else None


def _absence(scene: Scene, absent: Sequence[_Absent]) -> Incident:
    culprits = tuple(each.rank for each in absent)
    wait = _nearest(scene.waits, frozenset(culprits))
    left = _left_first(scene, wait)
    places = _most_telling_first([each.place for each in absent if each.place is not None])
    arrivals = [moment for each in absent if (moment := _arrival_at(scene, wait, each)) is not None]
    sites = scene.sites_of([wait]) | {place.rank: place.site for place in places if place.site is not None}
    basis = Absence(
        wait=wait,
        places=places,
        until_ns=scene.until_ns(wait),
        arrived_ns=min(arrivals, default=None),
        timeout_seconds=scene.timeout_seconds(wait if left is None else left),
        first=None if scene.then is None or left is None else (scene.then.rank, left.waited_ns or 0),
        apart=_apart(scene, wait, frozenset(culprits)),
        one_time=scene.compares((*wait.waiters, *culprits)),
    )
    return scene.incident(
        absent[0].name,
        wait,
        basis,
        culprits=culprits,
        step=places[0].step if places else None,
        site=places[0].site if places else None,
        sites=sites,
        cause=places[0].cause if places else absent[0].cause,
        evidence=tuple(said for place in places[:3] if place.told for said in _evidence(scene, place, wait)),
    )


def _most_telling_first(places: Sequence[Whereabouts]) -> tuple[Whereabouts, ...]:
    """Return places, those with a cause before those without one: the first of them speaks for all."""
    return tuple(sorted(places, key=lambda place: place.cause == UNKNOWN))


def _arrival_at(scene: Scene, wait: Wait, absent: _Absent) -> int | None:
    """Return when a rank came to an operation that lacked it, or to the one that others wait in for it."""
    return _arrival(scene, wait, absent.rank) if absent.rank in wait.absent else None


def _apart(scene: Scene, wait: Wait, culprits: frozenset[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the culprits that other operations lack, and who waits for them alone."""
    elsewhere = culprits - wait.absent
    alone = behind(scene.waits, elsewhere) - behind(scene.waits, culprits & wait.absent) - culprits
    return tuple(sorted(elsewhere)), tuple(sorted(alone))


def _left_first(scene: Scene, wait: Wait) -> Wait | None:
    """Return the operation that the first rank gave up in, where that was another one."""
    then = scene.then
    if then is None or wait.given_up_ns is not None:
        return None
    left = [each for each in then.waits if then.rank in each.waiters and each.given_up_ns is not None]
    return min(left, key=lambda each: each.since_ns, default=None)


def _nearest(waits: Iterable[Wait], culprits: frozenset[int]) -> Wait:
    """Return the operation that lacks all of the culprits, or most, and nobody else: others are missed elsewhere."""
    return min(
        (wait for wait in waits if wait.absent & culprits),
        key=lambda wait: (
            len(wait.absent - culprits),
            -len(wait.absent & culprits),
            wait.kind is not WaitKind.COLLECTIVE,
            wait.since_ns,
            wait.group,
            wait.number,
        ),
    )


def _evidence(scene: Scene, place: Whereabouts, wait: Wait) -> tuple[str, ...]:
    until = "the others gave up" if wait.given_up_ns is not None else "the logs end"
    if scene.then is not None and wait.given_up_ns is None:
        until = f"rank {scene.then.rank} gave up"
    said = f"rank {place.rank} {place.doing} when {until}"
    if scene.compares((*wait.waiters, place.rank)):
        lasted = seconds(max(0, scene.until_ns(wait) - place.since_ns))
        said = f"rank {place.rank} {place.doing} for {lasted} when {until}"
    return (said,) if place.detail is None else (said, f"rank {place.rank}: {place.detail}")


def _surplus(scene: Scene, absent: Sequence[_Absent]) -> Incident | None:
    """Return the incident of waiters that began a call after all others had ended well; a majority is not missing."""
    if not absent or any(each.cause != EXITED for each in absent):
        return None
    wait = absent[0].wait
    calls = scene.calls_in(wait)
    ended = tuple(sorted(each.rank for each in absent))
    if wait.kind is not WaitKind.COLLECTIVE or not calls or {each.wait for each in absent} != {wait}:
        return None
    call = calls[min(calls)]
    labels = Labels(scene.run)
    begun, most = labels.at(call).forwards, max(labels.in_all(rank).forwards for rank in ended)
    exhausted = all(labels.in_all(rank).ran_out for rank in ended)
    uneven = begun > most > 0 and exhausted
    waiters = tuple(sorted(wait.waiters))
    majority = 2 * len(ended) > len(ended) + len(waiters)
    if not majority and not uneven:
        return None
    culprits = waiters if majority else () if len(ended) == len(waiters) else ended
    shared = {frame for each in calls.values() for frame in each.path[:-1]}
    return scene.incident(
        Name.UNEVEN if uneven else Name.SEQUENCE,
        wait,
        Surplus(wait=wait, call=call, ended=ended, forwards=(begun, most) if uneven else None),
        culprits=culprits,
        step=call.step,
        site=own_line(call.path, shared - set(call.path[-1:])),
        sites=scene.sites_of([wait]),
        evidence=(
            f"{named(ended)} had issued {counted(call.seq - 1, 'call')} of the group and ended in an orderly way",
        ),
    )
