"""Which ranks do the same work: those of one pipeline stage; without a pipeline, all."""

from collections.abc import Mapping

import pandas as pd

from distdiag.run import Run


def stages_of(run: Run) -> Mapping[int, int]:
    """Return the pipeline stage of each rank, all 0 where messages do not connect ranks in chains of one length."""
    messages = run.calls.loc[run.calls["p2p"] & run.calls["peer"].notna(), ["rank", "peer"]].drop_duplicates()
    alone = dict.fromkeys(run.ranks, 0)
    neighbours = _neighbours(messages)
    chains = _chains(neighbours)
    straight = all(len(near) <= 2 for near in neighbours.values())
    if not chains or not straight or len({len(chain) for chain in chains}) > 1 or len(neighbours) < len(run.ranks):
        return alone
    edges = sum(len(near) for near in neighbours.values()) // 2
    if edges != sum(len(chain) - 1 for chain in chains):
        return alone
    return {rank: stage for chain in chains for stage, rank in enumerate(sorted(chain))}


def roles_of(run: Run) -> list[list[int]]:
    """Return the ranks of each role, in the order of stages."""
    stages = stages_of(run)
    return [[rank for rank in sorted(stages) if stages[rank] == stage] for stage in sorted(set(stages.values()))]


def _neighbours(messages: pd.DataFrame) -> dict[int, set[int]]:
    near: dict[int, set[int]] = {}
    for rank, peer in zip(messages["rank"].tolist(), messages["peer"].tolist(), strict=True):
        near.setdefault(int(rank), set()).add(int(peer))
        near.setdefault(int(peer), set()).add(int(rank))
    return near


def _chains(near: Mapping[int, set[int]]) -> list[set[int]]:
    """Return the sets of ranks that messages connect."""
    chains: list[set[int]] = []
    left = set(near)
    while left:
        found, open_ranks = set[int](), [min(left)]
        while open_ranks:
            rank = open_ranks.pop()
            if rank not in found:
                found.add(rank)
                open_ranks += near[rank]
        chains.append(found)
        left -= found
    return chains
