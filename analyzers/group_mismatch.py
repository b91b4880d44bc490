"""Ranks asked for different process groups.

What it means
    Every rank has to call ``new_group`` for every group, its own or not, with the same list and in the same order.
    Where lists differ, some ranks hang in ``new_group`` and others get groups that do not fit together; which of
    them is a matter of luck, and now and then the run even passes. The same holds for the group of all ranks: who
    joins at another address or port (cause ``other-address``), for a world of another size (``other-world-size``), or
    as a rank that another process is (``same-rank``), meets nobody, and the others wait for it in
    ``init_process_group``.

How it is found
    The lists that each rank asked for are compared one by one; groups made with local synchronisation are left out.
    Each process records where it joins, as which rank, and of how many, before it waits there. Where at least three
    told that and most of them agree, the others are named; otherwise both sides are shown. Different names of a host
    alone are no different places.

What to do
    Let all ranks loop over all lists in the same order, and keep the group that the rank is in. Give all processes of
    a launch one MASTER_ADDR, MASTER_PORT and WORLD_SIZE, and each a RANK of its own.
"""

from collections.abc import Iterator, Sequence

from distdiag.analyzers._wording import fold, named, verb
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.creation import GroupLists
from distdiag.analyzers.investigation.incident import Incident
from distdiag.analyzers.investigation.joining import OTHER_ADDRESS, OTHER_SIZE, SAME_RANK, Side, Unmet
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD317"
NAME = "group-mismatch"
MOST_SIDES = 4
"""So many are told, each with its ranks."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first list that differs."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, GroupLists):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(incident))
        elif isinstance(incident.basis, Unmet):
            yield incident.finding(CODE, _not_met(incident.basis), _to_meet(incident, incident.basis))


def _summary(incident: Incident, lists: GroupLists) -> str:
    asked: dict[tuple[int, ...], list[int]] = {}
    for rank, each in sorted(lists.lists.items()):
        asked.setdefault(each.ranks, []).append(rank)
    if lists.without:
        asked[()] = list(lists.without)
    sides = "; ".join(
        f"{named(ranks)} asked for {f'[{fold(members)}]' if members else 'none'}" for members, ranks in asked.items()
    )
    if lists.left_out:
        return f"{named(lists.odd)} left out new_group number {lists.index}{incident.at_step}\n{sides}."
    return f"new_group number {lists.index} was not the same on all ranks{incident.at_step}\n{sides}."


def _action(incident: Incident) -> tuple[str, ...]:
    lines = " and ".join(sorted(set(incident.sites.values())))
    return (f"let every rank ask for every group in the same order{f', see {lines}' if lines else ''}",)


def _not_met(unmet: Unmet) -> str:
    waiting = [rank for rank in unmet.waiting if rank not in unmet.odd]
    if unmet.cause == SAME_RANK:
        return f"two processes joined as one rank\n{'; '.join(map(_joined, unmet.sides))}."
    odd = [side for side in unmet.sides if set(side.ranks) <= set(unmet.odd)]
    others = [side for side in unmet.sides if side not in odd]
    if not odd:
        at = "at different places" if unmet.cause == OTHER_ADDRESS else "worlds of different sizes"
        return f"the ranks joined {at}, so they do not meet\n{_sides(unmet.sides)}."
    return (
        f"{_sides(odd)}, {_sides(others, again=True)}\n"
        f"They do not meet: {named(waiting)} {verb(waiting, 'waits', 'wait')} in init_process_group for the others."
    )


def _joined(side: Side) -> str:
    return f"{named(side.ranks)} {verb(side.ranks, 'was joined', 'both joined')} {side.words}"


def _sides(sides: Sequence[Side], *, again: bool = False) -> str:
    told = [f"{named(side.ranks)} {'' if again or n else 'joined '}{side.words}" for n, side in enumerate(sides)]
    return ", ".join(told[:MOST_SIDES]) + (f" and {len(told) - MOST_SIDES} more" if len(told) > MOST_SIDES else "")


def _to_meet(incident: Incident, unmet: Unmet) -> tuple[str, ...]:
    who = named(incident.culprits) if incident.culprits else "every process"
    lines = " and ".join(sorted(set(incident.sites.values())))
    what = {
        OTHER_ADDRESS: f"see where {who} gets MASTER_ADDR and MASTER_PORT from, or its init_method or store",
        OTHER_SIZE: f"see where {who} gets WORLD_SIZE from: all processes of a launch need the same",
        SAME_RANK: "give each process a rank of its own: LOCAL_RANK used as RANK gives each host the same ranks",
    }[unmet.cause]
    return (what, *((f"they join at {lines}",) if lines else ()))
