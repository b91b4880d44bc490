"""The investigation of a stuck or diverged run: what went wrong first, computed once for all analyzers.

Lists of groups, divergences and deaths compete by the time of their first event: a mismatch precedes the abort that it
causes. Only where there is none of them does the wait-for graph speak: it says where the waiting ends, not why.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from distdiag.analyzers._wording import first_line, named
from distdiag.analyzers.investigation.caught import before_death
from distdiag.analyzers.investigation.creation import GroupLists, asked_by_rank, differing_lists
from distdiag.analyzers.investigation.deaths import Death
from distdiag.analyzers.investigation.disagreements import disagreement
from distdiag.analyzers.investigation.divergence import Divergence
from distdiag.analyzers.investigation.first_divergence import divergence_of
from distdiag.analyzers.investigation.giving_up import before_interruption, giving_up
from distdiag.analyzers.investigation.incident import Disagreement, Incident, Unexplained
from distdiag.analyzers.investigation.joining import INIT, unmet
from distdiag.analyzers.investigation.lives import End, Life, lives_of
from distdiag.analyzers.investigation.loops import Labels
from distdiag.analyzers.investigation.mismatches import (
    of_misfits,
    of_reductions,
    of_sizes,
    of_splits,
    of_told_sizes,
)
from distdiag.analyzers.investigation.naming import Name
from distdiag.analyzers.investigation.other_clocks import at_other_times, why_uncertain
from distdiag.analyzers.investigation.own_deaths import deaths_of
from distdiag.analyzers.investigation.paths import location, short
from distdiag.analyzers.investigation.program import Programs
from distdiag.analyzers.investigation.queues import queues_of
from distdiag.analyzers.investigation.reductions import of_several_kinds, told_apart
from distdiag.analyzers.investigation.scene import Scene
from distdiag.analyzers.investigation.sizes import of_messages, size_mismatches
from distdiag.analyzers.investigation.sources import in_order
from distdiag.analyzers.investigation.standing import refused, standing
from distdiag.analyzers.investigation.streams import collectives_of, groups_that_differ
from distdiag.analyzers.investigation.trust import confidence_of, with_signal, within_source
from distdiag.analyzers.investigation.vanished import INSUFFICIENT, unexplained
from distdiag.analyzers.investigation.waitfor import Wait, standstill
from distdiag.analyzers.investigation.waits import blocked_calls, blocked_since, waits_of
from distdiag.analyzers.investigation.whereabouts import Whereabouts, whereabouts
from distdiag.run import Run

GROUP_MISMATCH = "group-mismatch"
RANK_DIED = "rank-died"
MOST_TOO = 2
"""Deaths that are told beside the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Investigation:
    """What went wrong in a run, the root first."""

    incidents: tuple[Incident, ...]
    waits: tuple[Wait, ...] = ()
    """The operations that cannot end, each with those that it needs."""

    def named(self, name: str) -> Iterator[Incident]:
        """Yield the root if it has this name: what came later is a consequence until the root is mended."""
        return (incident for incident in self.incidents if incident.name == name)


_investigations: weakref.WeakKeyDictionary[Run, Investigation] = weakref.WeakKeyDictionary()
"""Every analyzer asks; the answer lives as long as its run."""


def investigate(run: Run) -> Investigation:
    """Return what went wrong first."""
    known = _investigations.get(run)
    if known is None:
        known = _investigations[run] = _investigate(run)
    return known


def _investigate(run: Run) -> Investigation:
    if run.only_measured:
        return Investigation(incidents=())  # without logs nothing is known to stand still
    run, lives = before_interruption(run, lives_of(run))
    roots, waits = _roots(run, lives)
    if roots:
        for other in at_other_times(run, lives):
            found, _ = _roots(other, lives_of(other))
            if _accused(found) != _accused(roots):
                roots = (_depending_on_clocks(run, roots, found),)
                break
    return Investigation(
        incidents=tuple(confidence_of(run, with_signal(lives, within_source(run, each))) for each in roots), waits=waits
    )


def _accused(roots: Sequence[Incident]) -> list[tuple[str, tuple[int, ...]]]:
    return [(incident.name, incident.culprits) for incident in roots]


def _depending_on_clocks(run: Run, *possible: Sequence[Incident]) -> Incident:
    """Return that it is one thing or another, whichever clocks are right."""
    either = sorted(words for found in possible if (words := _suspicion(found)))
    accused = {rank for found in possible for each in found for rank in each.culprits}
    roots = possible[0]
    ranks = {rank for incident in roots for rank in (*incident.culprits, *incident.victims)}
    return Incident(
        name=INSUFFICIENT,
        time_ns=roots[0].time_ns,
        basis=Unexplained(
            ranks=tuple(sorted(ranks)),
            reason=f"{' or '.join(either)}: which of them cannot be told, {why_uncertain(run, accused)}",
        ),
    )


def _suspicion(found: Sequence[Incident]) -> str:
    return next((_in_short(each) for each in found), "")


def _in_short(incident: Incident) -> str:
    basis = incident.basis
    if isinstance(basis, Death) and basis.ranks:
        site = f" ({short(basis.site)})" if basis.site is not None else ""
        return f"{incident.name} ({named(basis.ranks)}: {first_line(basis.what)}{site})"
    return f"{incident.name} ({named(incident.culprits)})" if incident.culprits else incident.name


def _roots(run: Run, lives: Mapping[int, Life]) -> tuple[tuple[Incident, ...], tuple[Wait, ...]]:
    """Return what went wrong first, and the operations that cannot end."""
    blocked = blocked_calls(run, lives)
    queues = queues_of(run, lives)
    waits = (*waits_of(run, lives, blocked), *queues.waits)
    stuck = frozenset(rank for rank, life in lives.items() if life.failed_ns is not None) | frozenset(
        rank for wait in waits for rank in wait.waiters
    )
    since = {**blocked_since(blocked), **{rank: head.since_ns for rank, head in queues.heads.items()}}
    in_trouble = bool(waits or queues.halted) or any(life.in_trouble for life in lives.values())
    collectives = collectives_of(run, lives)
    several = of_several_kinds(run, collectives)
    disagreements = [*_disagreements(run, collectives, several, stuck, in_trouble=in_trouble)]
    found = [
        *_unmet(run, lives),
        *refused(run, lives),
        *_group_lists(run, lives, stuck),
        *disagreements,
        *of_splits(run, collectives, stuck),
        *of_reductions(run, several, stuck, beside=[d for each in disagreements if (d := _divergence_in(each))]),
        *of_sizes(run, [*size_mismatches(run, collectives), *of_messages(run, queues.unequal)], stuck),
        *of_misfits(run, stuck),
        *of_told_sizes(run, stuck),
        *_deaths(run, deaths_of(run, lives, since), stuck, waits),
    ]
    roots = _first(run, found)
    if not roots:
        then = giving_up(run, lives)
        waits = waits if then is None else then.waits
        roots = standing(Scene(run, lives, waits, collectives, queues.halted, then))
    if not roots and in_trouble:
        roots = tuple(unexplained(run, lives))
    return roots, waits


def _first(run: Run, found: Sequence[Incident]) -> tuple[Incident, ...]:
    """Return the incident whose first event came first; what nothing but call sites says yields to a death."""
    strong = [incident for incident in found if not _is_weak(incident)]
    # ``found`` holds the deaths last: at the same moment they are the consequence.
    first = sorted(strong or found, key=lambda each: each.time_ns)[:1]
    rivals = [each for each in strong if first and _may_be_first(run, first[0], each)]
    telling = [each for each in (*first, *rivals) if not _says_nothing(each)]
    if not rivals or len(telling) == 1:
        return tuple(telling or first)
    return (_depending_on_clocks(run, *[(each,) for each in telling or (*first, *rivals)]),)


def _may_be_first(run: Run, first: Incident, other: Incident) -> bool:
    """Return whether a death may have come before one that seems to: no clock is common to them."""
    if not (isinstance(first.basis, Death) and isinstance(other.basis, Death)) or first is other:
        return False
    one, another = first.basis.ranks, other.basis.ranks
    return bool(one and another) and not in_order(run, (*one, *another))


def _says_nothing(incident: Incident) -> bool:
    """Return whether no more is known of a death than a code with which watchdogs, too, end their processes."""
    basis = incident.basis
    return isinstance(basis, Death) and not basis.frames and basis.what.startswith(("SIGABRT", "exit code"))


def _is_weak(incident: Incident) -> bool:
    divergence = _divergence_in(incident)
    return divergence is not None and divergence.weak


def _divergence_in(incident: Incident) -> Divergence | None:
    return incident.basis.divergence if isinstance(incident.basis, Disagreement) else None


def _unmet(run: Run, lives: Mapping[int, Life]) -> Iterator[Incident]:
    apart = unmet(run, lives)
    if apart is not None:
        yield Incident(
            name=GROUP_MISMATCH,
            time_ns=apart.time_ns,
            basis=apart,
            culprits=apart.odd,
            victims=tuple(sorted(set(apart.waiting) - set(apart.odd))),
            op=INIT,
            site=apart.sites.get(apart.odd[0]) if apart.odd else None,
            sites=apart.sites,
            cause=apart.cause,
            evidence=apart.evidence,
        )


def _group_lists(run: Run, lives: Mapping[int, Life], stuck: frozenset[int]) -> Iterator[Incident]:
    complete = [rank for rank, life in lives.items() if not life.in_trouble and life.end is not End.RUNNING]
    lists = differing_lists(asked_by_rank(run), complete)
    if lists is None:
        return
    sites = {rank: location(each.path[-1]) for rank, each in lists.lists.items() if each.path}
    left = _left_before(run, lives, lists)
    blamed = lists.odd or tuple(sorted(lists.lists))
    yield Incident(
        name=GROUP_MISMATCH,
        time_ns=lists.time_ns,
        basis=lists,
        culprits=lists.odd,
        victims=tuple(sorted(stuck - set(lists.odd))),
        seq=lists.index,
        op="new_group",
        step=next((lists.lists[rank].step for rank in blamed if rank in lists.lists), None),
        site=left.site if left else sites.get(blamed[0]) if lists.odd or len(set(sites.values())) == 1 else None,
        sites=sites,
        evidence=_list_evidence(lists),
        before="" if left is None else f"rank {left.rank} {left.doing}",
    )


def _left_before(run: Run, lives: Mapping[int, Life], lists: GroupLists) -> Whereabouts | None:
    """Return how a rank that is blamed for a group that it never asked for had ended before the others did."""
    odd = next((lives[rank] for rank in lists.odd if rank in lists.without), None)
    first_ns = min(each.time_ns for each in lists.lists.values())
    gone = odd is not None and odd.end in (End.ORDERLY, End.HARD_EXIT) and odd.end_ns < first_ns
    return whereabouts(run, odd, first_ns, lists.time_ns) if odd is not None and gone else None


def _list_evidence(lists: GroupLists) -> tuple[str, ...]:
    first = "the lists before it are equal" if lists.index else "it is the first group that was asked for"
    return (f"new_group number {lists.index} differs; {first}",)


def _disagreements(
    run: Run, calls: pd.DataFrame, several: pd.DataFrame, stuck: frozenset[int], *, in_trouble: bool
) -> Iterator[Incident]:
    groups = groups_that_differ(calls, told_apart(calls, several), sites_too=in_trouble)
    if not groups:
        return
    labels, programs = Labels(run), None
    for group in groups:
        divergence = divergence_of(run, calls, group, labels)
        if divergence is not None and not divergence.decided and len(run.ranks) > len(group.by_rank):
            programs = programs or Programs(run, calls, labels)  # all calls of all ranks: made once, if at all
            divergence = programs.decided(divergence)
        if divergence is not None and not divergence.only_combines_otherwise:
            yield disagreement(run, divergence, labels, stuck)


def _deaths(run: Run, deaths: Sequence[Death], stuck: frozenset[int], waits: Sequence[Wait]) -> Iterator[Incident]:
    for number, death in enumerate(deaths):
        death = replace(death, too=tuple(map(_too, deaths[number + 1 :][:MOST_TOO])))
        memory = death.cause == Name.MEMORY
        everybody = len(death.ranks) == len(run.ranks) > 1 and not run.missing
        awaited = () if death.ranks else tuple(standstill(waits).sinks)
        perhaps = f"the others wait for {named(awaited)}, which may be that one" if len(awaited) == 1 else ""
        came_up = f"it came to the top as {first_line(death.came_up_as)}" if death.came_up_as else ""
        yield Incident(
            name=Name.MEMORY if memory else RANK_DIED,
            time_ns=death.time_ns,
            basis=death,
            culprits=() if everybody else death.ranks,
            victims=tuple(sorted((stuck | set(death.raised_by)) - set(death.ranks))),
            step=death.step,
            site=death.site,
            sites=dict.fromkeys(death.ranks, death.site) if death.site is not None else {},
            cause=death.cause,
            evidence=tuple(text for text in (death.what, perhaps, came_up, death.reason, *death.too) if text),
            before=before_death(run, death),
        )


def _too(death: Death) -> str:
    who, verb = named(death.ranks) if death.ranks else "a process", "raised" if death.frames else "ended by"
    site = "" if death.site is None else f" ({short(death.site)})"
    return f"{who} {verb} {first_line(death.what)}{site}, too"


__all__ = ["End", "Investigation", "investigate"]
