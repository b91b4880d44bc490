"""Ranks asked for different process groups.

What it means
    Every rank has to call ``new_group`` for every group, its own or not, with the same list and in the same order.
    Where lists differ, some ranks hang in ``new_group`` and others get groups that do not fit together; which of
    them is a matter of luck, and now and then the run even passes.

How it is found
    The lists that each rank asked for are compared one by one; groups made with local synchronisation are left out.

What to do
    Let all ranks loop over all lists in the same order, and keep the group that the rank is in.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import fold, named
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.creation import GroupLists
from distdiag.analyzers.investigation.incident import Incident
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD317"
NAME = "group-mismatch"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first list that differs."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, GroupLists):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(incident, incident.basis))


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


def _action(incident: Incident, lists: GroupLists) -> tuple[str, ...]:
    lines = " and ".join(sorted(set(incident.sites.values())))
    return (f"let every rank ask for every group in the same order{f', see {lines}' if lines else ''}",)
