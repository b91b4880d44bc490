"""Ranks that do not meet: they join at different places, for worlds of different sizes, or two of them as one rank.

Each process records where it means to meet the others, and as whom, before it waits there. A meeting to which all of
its ranks came is none of the trouble, whatever other meetings there are; one that lacks some, beside another that lacks
others, is. A host has several names and addresses, so different words alone are no different places: different ports
and files are, a loop-back on another host than that of the first rank is, and so is an address that nobody answered at.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation.lives import SECOND_NS, Life
from distdiag.analyzers.investigation.paths import Frames, location
from distdiag.analyzers.investigation.rows import records, whole
from distdiag.analyzers.investigation.stores import CAME, UNANSWERED, awaited_in, said_last
from distdiag.run import Run

INIT = "init_process_group"
OWN_STORE = "TCPStore"
BRIEF_NS = 3 * SECOND_NS
"""Ranks that began to join less than this before their logs end may still meet."""
LEAST_TOLD = 3
"""Of fewer ranks none is the odd one."""
OTHER_ADDRESS, OTHER_SIZE, SAME_RANK = "other-address", "other-world-size", "same-rank"
"""Causes."""

_LOOP_BACK = re.compile(r"localhost(?:\..*)?|127(?:\.\d+){3}|::1|0\.0\.0\.0")


Meeting = tuple[object, int | None]
"""A place, and the size of the world that is to meet there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Where one process went to meet the others."""

    rank: int
    """Of its log."""
    as_rank: int | None
    address: str
    port: int | None
    world_size: int | None
    time_ns: int
    open: bool
    failed: bool
    path: Frames
    host: str
    said: str
    """Its uncaught exception."""

    @property
    def where(self) -> str:
        """Return the address as people write it."""
        return self.address if self.port is None else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Ranks that joined alike."""

    words: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """Ranks that wait for one another at different places, or as the same rank."""

    cause: str
    sides: tuple[Side, ...]
    """The largest first."""
    odd: tuple[int, ...]
    """The strict minority; of ranks that joined as the same one, those whose launcher called them otherwise."""
    waiting: tuple[int, ...]
    time_ns: int
    sites: Mapping[int, str] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()


def unmet(run: Run, lives: Mapping[int, Life]) -> Unmet | None:
    """Return how ranks that do not come through joining differ in where and how they join, where they do."""
    joined = _joined(run)
    stuck = {rank for rank, each in joined.items() if _is_stuck(each, lives.get(rank), joined)}
    apart = _sizes_apart(joined, lives)
    if len(joined) < 2 or not (stuck or apart):
        return None
    places = _places(joined)
    meetings: dict[Meeting, list[Joined]] = {}
    for rank, each in joined.items():
        meetings.setdefault((places[rank], each.world_size), []).append(each)
    incomplete = {key for key, ranks in meetings.items() if not _is_complete(key[1], ranks)}
    if not any(each.rank in stuck | apart for key in incomplete for each in meetings[key]):
        return None
    at = {place for place, _ in incomplete}
    concerned = {key: ranks for key, ranks in meetings.items() if key[0] in at}
    if len(concerned) == 1:
        return _as_one(run, next(iter(concerned.values())))
    return _at_several(run, concerned)


def where_joined(run: Run) -> dict[str, list[int]]:
    """Return which ranks joined at which address, as it was written."""
    places: dict[str, list[int]] = {}
    for rank, each in _joined(run).items():
        places.setdefault(each.where, []).append(rank)
    return places


def _joined(run: Run) -> dict[int, Joined]:
    """Return the last joining of each rank that told where it went."""
    phases = run.phases
    mine = phases[phases["phase"].isin((INIT, OWN_STORE))]
    ends = {(int(row.rank), int(row.number)): bool(row.failed) for row in records(mine[mine["edge"] == "end"])}
    hosts = {int(row.rank): str(row.host) for row in records(run.headers)}
    said = said_last(run)
    found: dict[int, Joined] = {}
    for row in records(mine[(mine["edge"] == "begin") & mine["address"].notna()].sort_values(["rank", "time_ns"])):
        rank, failed = int(row.rank), ends.get((int(row.rank), int(row.number)))
        if row.phase == OWN_STORE and failed is False:
            continue  # what it is for comes later
        found[rank] = Joined(
            rank=rank,
            as_rank=whole(row.as_rank),
            address=str(row.address),
            port=whole(row.port),
            world_size=whole(row.world_size),
            time_ns=int(row.time_ns),
            open=failed is None,
            failed=bool(failed),
            path=run.paths.get(whole(row.path) or 0, ()),
            host=hosts.get(rank, ""),
            said=said.get(rank, ""),
        )
    return found


def _is_stuck(joined: Joined, life: Life | None, all_joined: Mapping[int, Joined]) -> bool:
    """Return whether a rank did not come through joining, and not only because others have just begun."""
    if life is None:
        return False
    if joined.failed:
        return life.failed_ns is not None
    newest_ns = max(each.time_ns for each in all_joined.values())
    return joined.open and life.last_ns - newest_ns >= BRIEF_NS


def _sizes_apart(joined: Mapping[int, Joined], lives: Mapping[int, Life]) -> set[int]:
    """Return the ranks in trouble where some joined one place for worlds of different sizes, and came through."""
    at: dict[tuple[str, int | None], set[int]] = {}
    for each in joined.values():
        if each.world_size is not None:
            at.setdefault((each.address, each.port), set()).add(each.world_size)
    several = {place for place, sizes in at.items() if len(sizes) > 1}
    return {
        rank
        for rank, each in joined.items()
        if (each.address, each.port) in several and rank in lives and lives[rank].in_trouble
    }


def _places(joined: Mapping[int, Joined]) -> dict[int, object]:
    """Return for each rank something that is equal for all that go to the same place."""
    networked = [each for each in joined.values() if each.port is not None]
    first_hosts = {each.host for each in networked if each.as_rank == 0}
    elsewhere = {each.host for each in networked} - first_hosts if first_hosts else set()
    usual = _most_frequent([each.address for each in networked if each.as_rank != 0])
    places: dict[int, object] = {rank: each.address for rank, each in joined.items() if each.port is None}
    for each in networked:
        machine = _machine(each, networked)
        unanswered = each.address != usual and machine not in first_hosts and UNANSWERED.search(each.said)
        # The first rank's server listens on all addresses of its host, whatever the name it was given.
        apart = each.as_rank != 0 and (machine in elsewhere or unanswered)
        places[each.rank] = (machine if apart else None, each.port)
    return places


def _most_frequent(addresses: Sequence[str]) -> str | None:
    return max(sorted(set(addresses)), key=addresses.count, default=None)


def _machine(joined: Joined, networked: Sequence[Joined]) -> str:
    """Return the host that an address means, as far as the logs tell; the address itself otherwise."""
    if _LOOP_BACK.fullmatch(joined.address):
        return joined.host
    short = joined.address.partition(".")[0]
    return next((each.host for each in networked if each.host in (joined.address, short)), joined.address)


def _is_complete(world_size: int | None, ranks: Sequence[Joined]) -> bool:
    numbers = sorted(each.as_rank for each in ranks if each.as_rank is not None)
    return world_size is not None and numbers == list(range(world_size))


def _came_from_elsewhere(meetings: Mapping[Meeting, Sequence[Joined]]) -> bool:
    """Return whether more ranks came to a store than went to its place: ports are passed on to others there."""
    at: dict[object, list[Joined]] = {}
    for (place, _), ranks in meetings.items():
        at.setdefault(place, []).extend(ranks)
    return any(
        int(match[1]) > len(ranks) for ranks in at.values() for each in ranks if (match := CAME.search(each.said))
    )


def _at_several(run: Run, meetings: Mapping[Meeting, Sequence[Joined]]) -> Unmet | None:
    if _came_from_elsewhere(meetings):
        return None
    several_places = len({place for place, _ in meetings}) > 1
    several_sizes = len({size for _, size in meetings}) > 1
    ordered = sorted(meetings.values(), key=lambda ranks: (-len(ranks), ranks[0].rank))
    told = sum(len(ranks) for ranks in ordered)
    decided = told >= LEAST_TOLD and 2 * len(ordered[0]) > told
    odd = [each for ranks in ordered[1:] for each in ranks] if decided else []
    everybody = [each for ranks in ordered for each in ranks]
    hosts_told = len({each.host for each in everybody}) > 1 and len({each.where for each in everybody}) < len(ordered)
    return Unmet(
        cause=OTHER_ADDRESS if several_places else OTHER_SIZE,
        sides=tuple(
            Side(
                words=_words(ranks, address=several_places, size=several_sizes, host=hosts_told),
                ranks=tuple(sorted(each.rank for each in ranks)),
            )
            for ranks in ordered
        ),
        odd=tuple(sorted(each.rank for each in odd)),
        waiting=tuple(sorted(each.rank for each in everybody)),
        time_ns=min(each.time_ns for each in odd or everybody),
        sites=_sites(everybody),
        evidence=tuple(_heard(run, everybody)),
    )


def _words(ranks: Sequence[Joined], *, address: bool, size: bool, host: bool) -> str:
    where = " or ".join(sorted({each.where for each in ranks}))
    on = f" of {' and '.join(sorted({each.host for each in ranks}))}" if host else ""
    at = f"at {where}{on}" if address else ""
    world = f"a world of {ranks[0].world_size}" if size else ""
    return " ".join(part for part in (world, at) if part)


def _as_one(run: Run, ranks: Sequence[Joined]) -> Unmet | None:
    """Return which ranks joined one meeting as the same one."""
    by_number: dict[int, list[Joined]] = {}
    for each in ranks:
        if each.as_rank is not None:
            by_number.setdefault(each.as_rank, []).append(each)
    twice = {number: each for number, each in by_number.items() if len(each) > 1}
    doubled = {rank: pids for rank, pids in run.quality.doubled_ranks.items() if rank in by_number}
    if not twice and not doubled:
        return None
    sides = [Side(words=f"as rank {number}", ranks=tuple(each.rank for each in both)) for number, both in twice.items()]
    odd = {each.rank for number, both in twice.items() for each in both if each.rank != number}
    evidence = []
    for rank, pids in doubled.items():
        sides.append(Side(words=f"by {len(pids)} processes", ranks=(rank,)))
        odd.add(rank)
        evidence.append(f"rank {rank}: processes {', '.join(map(str, pids))}")
    size = next((each.world_size for each in ranks if each.world_size is not None), None)
    nobody = sorted(set(range(size or 0)) - by_number.keys())
    concerned = [each for each in ranks if each.rank in odd or each.as_rank in twice] or list(ranks)
    return Unmet(
        cause=SAME_RANK,
        sides=tuple(sides),
        odd=tuple(sorted(odd)),
        waiting=tuple(sorted(each.rank for each in ranks)),
        time_ns=min(each.time_ns for each in concerned),
        sites=_sites(concerned),
        evidence=(*evidence, *((f"nobody came as {named(nobody)}",) if nobody else ()), *_heard(run, ranks)),
    )


def _sites(ranks: Collection[Joined]) -> dict[int, str]:
    return {each.rank: location(each.path[-1]) for each in ranks if each.path}


def _heard(run: Run, ranks: Sequence[Joined]) -> Iterator[str]:
    """Yield what the errors of ranks say of who came."""
    for each in sorted(ranks, key=lambda each: each.rank):
        came = CAME.search(each.said)
        if came:
            yield f"rank {each.rank}: {came[0]} the store at {each.where}"
        elif UNANSWERED.search(each.said):
            yield f"rank {each.rank}: no store answered at {each.where}"
    awaited = awaited_in(run)
    for missing in sorted(set(awaited.values())):
        who = [rank for rank, other in awaited.items() if other == missing]
        yield f"{named(who)} waited for what rank {missing} leaves in the store"
