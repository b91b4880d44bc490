"""Members of a group that ran the same program: with the same calls, or with calls that differ in roles only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distdiag.analyzers.investigation.align import Stream, align
from distdiag.analyzers.investigation.streams import GroupCalls, Member


@dataclass(frozen=True, slots=True)
class Program:
    """Ranks with the same stream, as far as each of them came."""

    ranks: tuple[int, ...]
    longest: int
    """The rank that came farthest."""


def programs_of(group: GroupCalls) -> list[Program]:
    """Return the different streams of a group; one that is the beginning of another counts with it."""
    by_length = sorted(group.by_rank, key=lambda rank: (-len(group.by_rank[rank].codes), rank))
    beginnings: dict[bytes, list[list[int]]] = {}
    shortest = len(group.by_rank[by_length[-1]].codes)
    for rank in by_length:
        codes = group.by_rank[rank].codes
        alike = beginnings.setdefault(codes[:shortest].tobytes(), [])
        for ranks in alike:
            if np.array_equal(group.by_rank[ranks[0]].codes[: len(codes)], codes):
                ranks.append(rank)
                break
        else:
            alike.append([rank])
    programs = [Program(tuple(sorted(ranks)), ranks[0]) for alike in beginnings.values() for ranks in alike]
    # Ties are broken by what the ranks did, never by their numbers: relabelling ranks relabels the verdict.
    return sorted(programs, key=lambda p: (-len(p.ranks), *content(group.by_rank[p.longest])))


def clusters_of(programs: Sequence[Program], streams: Mapping[int, Stream]) -> list[list[Program]]:
    """Return programs that differ in roles only put together, the most ranks first."""
    clusters: list[list[Program]] = []
    for program in programs:
        for cluster in clusters:
            if align(streams[cluster[0].longest], streams[program.longest]).same_program:
                cluster.append(program)
                break
        else:
            clusters.append([program])
    return sorted(clusters, key=lambda cluster: -sum(len(program.ranks) for program in cluster))


def content(member: Member) -> tuple[int, bytes]:
    """Return what orders members by what they did: the longer stream first, then its codes."""
    return -len(member.codes), member.codes.tobytes()
