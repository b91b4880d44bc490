"""Group lists: every rank has to ask for the same groups in the same order, whether or not it is a member."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from distdiag.analyzers.investigation.paths import Frames
from distdiag.analyzers.investigation.rows import records, whole
from distdiag.run import Run

NEW_GROUP = "new_group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One group that a rank asked for."""

    ranks: tuple[int, ...]
    time_ns: int
    step: int
    path: Frames


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLists:
    """The first place at which the ranks' lists of groups differ."""

    index: int
    lists: Mapping[int, Asked]
    """What each rank asked for there."""
    without: tuple[int, ...]
    """Ranks that ended without having asked for a group there."""
    odd: tuple[int, ...]
    """The strict minority, empty at a tie."""
    left_out: bool
    """Whether the odd ranks left a group out that the others asked for: theirs comes later in the others' lists."""
    time_ns: int


def asked_by_rank(run: Run) -> Mapping[int, Sequence[Asked]]:
    """Return the groups that each rank asked for, in order; those made with local synchronisation are nobody else's."""
    phases = run.phases
    begun = phases[(phases["phase"] == NEW_GROUP) & (phases["edge"] == "begin") & ~phases["local"]]
    asked: dict[int, list[Asked]] = {rank: [] for rank in run.ranks}
    for row in records(begun.sort_values(["rank", "time_ns", "number"])):
        path = run.paths.get(whole(row.path) or 0, ())
        ranks = tuple(sorted(row.ranks)) if row.ranks is not None else ()
        asked[int(row.rank)].append(Asked(ranks=ranks, time_ns=int(row.time_ns), step=int(row.step), path=path))
    return asked


def differing_lists(asked: Mapping[int, Sequence[Asked]], complete: Collection[int] = ()) -> GroupLists | None:
    """Return where the lists first differ, None where each is the beginning of the longest.

    The list of a rank in ``complete`` did not merely end early: what is not on it was never asked for.
    """
    for index in range(max((len(groups) for groups in asked.values()), default=0)):
        here = {rank: groups[index] for rank, groups in asked.items() if len(groups) > index}
        without = [rank for rank in complete if len(asked[rank]) <= index]
        if without or len({each.ranks for each in here.values()}) > 1:
            return _lists(index, here, without, asked)
    return None


def _lists(
    index: int, here: Mapping[int, Asked], without: Sequence[int], asked: Mapping[int, Sequence[Asked]]
) -> GroupLists:
    votes: dict[tuple[int, ...] | None, list[int]] = {None: list(without)} if without else {}
    for rank, each in here.items():
        votes.setdefault(each.ranks, []).append(rank)
    majority = max(votes.values(), key=len)
    voters = set(here) | set(without)
    odd = tuple(sorted(voters - set(majority))) if 2 * len(majority) > len(voters) else ()
    later = {each.ranks for rank in majority for each in asked[rank][index + 1 :]}
    return GroupLists(
        index=index,
        lists=here,
        without=tuple(sorted(without)),
        odd=odd,
        left_out=bool(odd) and all(rank in without or here[rank].ranks in later for rank in odd),
        time_ns=max(each.time_ns for each in here.values()),
    )
