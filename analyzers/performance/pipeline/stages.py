"""Which ranks are the stages of a pipeline: ranks that messages connect in chains of one length.

A stage sends to the next one and gets gradients back, so that messages draw a path through its ranks. Where a rank
holds several stages (interleaved), the last rank also sends to the first, less often than the others: a ring with one
weak link. Copies of the pipeline (data or tensor parallelism) are more chains of the same length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distdiag.analyzers.performance.pipeline.messages import Exchange, Messages, Pair

Near = Mapping[int, frozenset[int]]
FEWEST_OF_A_RING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The ranks of a pipeline."""

    chains: tuple[tuple[int, ...], ...]
    """One for each copy of the pipeline, ranks in the order of stages."""
    ring: bool
    """The last rank also hands work to the first."""

    @property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of each stage, in the order of stages."""
        return tuple(tuple(sorted(ranks)) for ranks in zip(*self.chains, strict=True))

    @property
    def stage_of(self) -> dict[int, int]:
        """Return the stage of each rank."""
        return {rank: stage for chain in self.chains for stage, rank in enumerate(chain)}


def layout_of(messages: Messages, ranks: Sequence[int]) -> Layout | str:
    """Return the stages that messages connect, or why they are none."""
    near = _neighbours(messages.exchanges)
    if not near:
        return "no messages between two ranks in whole steps"
    if set(near) != set(ranks):
        return "some ranks exchange messages and others do not"
    if any(len(each) > 2 for each in near.values()):
        return "a rank exchanges messages with more than two others"
    found = [_chain(part, near, messages.exchanges) for part in _parts(near)]
    chains = [chain for chain, _ in found]
    if any(not chain for chain in chains):
        return "messages go round in rings"
    if len({len(chain) for chain in chains}) > 1 or len({ring for _, ring in found}) > 1:
        return "messages connect ranks in chains of several lengths"
    ordered = tuple(sorted(_in_order(chain, messages.exchanges) for chain in chains))
    return Layout(chains=ordered, ring=found[0][1])


def _neighbours(exchanges: Mapping[Pair, Exchange]) -> Near:
    near: dict[int, set[int]] = {}
    for rank, peer in exchanges:
        near.setdefault(rank, set()).add(peer)
        near.setdefault(peer, set()).add(rank)
    return {rank: frozenset(peers - {rank}) for rank, peers in near.items()}


def _parts(near: Near) -> list[set[int]]:
    """Return the sets of ranks that messages connect."""
    parts: list[set[int]] = []
    left = set(near)
    while left:
        found, open_ranks = set[int](), [min(left)]
        while open_ranks:
            rank = open_ranks.pop()
            if rank not in found:
                found.add(rank)
                open_ranks += near[rank]
        parts.append(found)
        left -= found
    return parts


def _chain(part: set[int], near: Near, exchanges: Mapping[Pair, Exchange]) -> tuple[tuple[int, ...], bool]:
    """Return the ranks from one end to the other, and whether they are a ring; no ranks where there is no end."""
    ends = sorted(rank for rank in part if len(near[rank]) == 1)
    if len(ends) == 2:
        return _walked(ends[0], None, near), False
    if len(part) < FEWEST_OF_A_RING or ends:
        return (), False
    weights = {(a, b): _weight(a, b, exchanges) for a in part for b in near[a] if a < b}
    weakest = min(weights, key=lambda pair: (weights[pair], pair))
    others = {weight for pair, weight in weights.items() if pair != weakest}
    if len(others) > 1 or weights[weakest] >= min(others):
        return (), False
    return _walked(weakest[0], weakest[1], near), True


def _weight(one: int, other: int, exchanges: Mapping[Pair, Exchange]) -> int:
    return sum(exchanges[pair].sends for pair in ((one, other), (other, one)) if pair in exchanges)


def _walked(first: int, avoided: int | None, near: Near) -> tuple[int, ...]:
    """Return the ranks on the way from the first to the end, which is not reached over ``avoided`` at once."""
    way, before = [first], avoided
    while further := sorted(near[way[-1]] - {before, *way}):
        before = way[-1]
        way.append(further[0])
    return tuple(way)


def _in_order(chain: tuple[int, ...], exchanges: Mapping[Pair, Exchange]) -> tuple[int, ...]:
    """Return a chain from its first stage: the end that sends to its neighbour before it gets anything from it."""
    begins = [_begins(chain[0], chain[1], exchanges), _begins(chain[-1], chain[-2], exchanges)]
    if begins[0] == begins[1]:
        return chain if chain[0] < chain[-1] else chain[::-1]
    return chain if begins[0] else chain[::-1]


def _begins(rank: int, neighbour: int, exchanges: Mapping[Pair, Exchange]) -> bool:
    known = exchanges.get((rank, neighbour))
    return known is not None and known.sends_first > 0
