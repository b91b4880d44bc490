"""Connections between ranks that stand still, and who it is that the network does not reach."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

End = TypeVar("End", int, str)


class Links:
    """What ranks that stand still say of their connections; two ends belong together by their addresses."""

    def __init__(self) -> None:
        self._held: dict[int, frozenset[str]] = {}
        self._unanswered: dict[int, frozenset[str]] = {}

    def learn(self, rank: int, established: Sequence[str], unanswered: Sequence[str]) -> None:
        """Take what a rank says, each connection as ``local>remote``."""
        self._held[rank] = frozenset(established)
        self._unanswered[rank] = frozenset(unanswered)

    def forget(self, rank: int) -> None:
        """Forget what a rank said: it moves again."""
        self._held.pop(rank, None)
        self._unanswered.pop(rank, None)

    def broken(self) -> list[tuple[int, int]]:
        """Return the pairs (sender, receiver) of ranks where what was sent is not acknowledged, in order."""
        owner = {link: rank for rank, links in self._held.items() for link in links}
        found = set()
        for rank, links in self._unanswered.items():
            for link in links:
                local, _, remote = link.partition(">")
                other = owner.get(f"{remote}>{local}")
                if other is not None and other != rank:
                    found.add((rank, other))
        return sorted(found)


def cut_off(broken: Collection[tuple[int, int]], hosts: Mapping[int, str]) -> tuple[int, ...]:
    """Return the rank that all broken connections of several have in common, or the ranks of such a host.

    One broken connection alone does not tell which of its two ends it is; then there is no answer.
    """
    common = _common({frozenset(pair) for pair in broken})
    if common is not None:
        return (common,)
    between = {frozenset((hosts.get(a, ""), hosts.get(b, ""))) for a, b in broken}
    host = _common({pair for pair in between if len(pair) > 1})
    return () if host is None else tuple(sorted(rank for rank, own in hosts.items() if own == host))


def _common(pairs: Collection[frozenset[End]]) -> End | None:
    """Return what is in all pairs, where there are several of them and it is one alone."""
    counts = Counter(end for pair in pairs for end in pair)
    in_all = [end for end, count in counts.items() if count == len(pairs)]
    return in_all[0] if len(pairs) > 1 and len(in_all) == 1 else None
