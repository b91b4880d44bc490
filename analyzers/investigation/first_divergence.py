"""Where the members of one group first stopped issuing the same calls, and which of them left the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from distdiag.analyzers.investigation.align import Alignment, Departure, Kind, Stream, align, departure, line_left
from distdiag.analyzers.investigation.divergence import Divergence, divergence_at
from distdiag.analyzers.investigation.loops import Labels
from distdiag.analyzers.investigation.streams import GroupCalls, Integers, Member, stream_of
from distdiag.run import Run

MAX_PROGRAMS = 12
"""So many different streams of one group are aligned; more are no program with one odd rank."""


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


def divergence_of(run: Run, calls: pd.DataFrame, group: GroupCalls, labels: Labels) -> Divergence | None:
    """Return the first divergence of a group, None where members differ in roles only."""
    programs = programs_of(group)
    if len(programs) > MAX_PROGRAMS:
        return _by_vote(run, calls, group, labels)
    streams = {p.longest: stream_of(run, calls, group.by_rank[p.longest], labels) for p in programs}
    clusters = clusters_of(programs, streams)
    found = [
        event
        for odd in (program for cluster in clusters[1:] for program in cluster)
        if (event := _event(run, calls, group, clusters, odd, streams, labels)) is not None
    ]
    if not found:
        return None if group.unequal is None else _by_vote(run, calls, group, labels)
    each_apart = len(clusters) == len(group.by_rank) > 2
    if group.unequal is not None and not any(event.decided for event in found):
        voted = _by_vote(run, calls, group, labels)
        if voted is not None and (voted.decided or len(clusters) > 2):
            return replace(voted, each_apart=each_apart)
    first = replace(_earliest(found), each_apart=each_apart)
    return at_odd_step(run, calls, group, labels, first) or first


def _earliest(found: Sequence[Divergence]) -> Divergence:
    """Return the first of several, with all ranks that left at the same call in the same way."""
    first = min(found, key=lambda d: (not d.decided, d.where.reference, d.time_ns, str(d.kind)))
    same = [
        d for d in found if (d.where.reference, d.kind, d.decided) == (first.where.reference, first.kind, first.decided)
    ]
    odd = tuple(sorted({rank for each in same for rank in each.odd}))
    return replace(first, odd=odd, others=tuple(rank for rank in first.others if rank not in odd))


def _event(
    run: Run,
    calls: pd.DataFrame,
    group: GroupCalls,
    clusters: Sequence[Sequence[Program]],
    odd: Program,
    streams: Mapping[int, Stream],
    labels: Labels,
) -> Divergence | None:
    """Return where ``odd`` leaves the largest cluster, seen from the member of it that has its role."""
    stream = streams[odd.longest]
    aligned = [(align(streams[p.longest], stream), p) for p in clusters[0]]
    alignment, reference = min(aligned, key=lambda pair: pair[0].cost)
    where = departure(streams[reference.longest], stream, alignment)
    if where is None:
        return None
    weak = False
    if _agree(streams[reference.longest], stream) and where.kind is not Kind.INSTEAD:
        weak = not _labels_say_so(streams[reference.longest], stream, alignment)
        if weak and not _explains_the_stop(streams[reference.longest], stream, alignment):
            return None
    majority = [rank for program in clusters[0] for rank in program.ranks]
    others = tuple(sorted(rank for rank in majority if len(group.by_rank[rank].codes) > where.reference))
    passed = [rank for rank in group.by_rank if len(group.by_rank[rank].codes) > min(where.reference, where.odd)]
    return divergence_at(
        run,
        calls,
        group,
        labels,
        where,
        reference=(reference.longest, streams[reference.longest]),
        odd=(odd.longest, stream),
        odd_ranks=odd.ranks,
        others=others,
        decided=2 * len(others) > len(passed),
        weak=weak,
    )


def _by_vote(run: Run, calls: pd.DataFrame, group: GroupCalls, labels: Labels) -> Divergence | None:
    """Return the first calls that had to agree and did not, blaming those that are outvoted there."""
    if group.unequal is None:
        return None
    modules = pd.factorize(calls["module"])[0].astype(np.int64)
    told = {rank: modules[member.rows] for rank, member in group.by_rank.items()}
    position = _apart(list(told.values()), group.unequal)
    if position == group.unequal:
        told = {rank: member.agree for rank, member in group.by_rank.items()}
    votes: dict[int, list[int]] = {}
    for rank in sorted(told):
        if len(told[rank]) > position:
            votes.setdefault(int(told[rank][position]), []).append(rank)
    ranked = sorted(votes.values(), key=lambda ranks: (-len(ranks), *content(group.by_rank[ranks[0]])))
    majority, odd = ranked[0], sorted(rank for ranks in ranked[1:] for rank in ranks)
    reference, stream = (stream_of(run, calls, group.by_rank[ranks[0]], labels) for ranks in (majority, odd))
    first = line_left(reference, stream, position)
    return divergence_at(
        run,
        calls,
        group,
        labels,
        Departure(reference=first, odd=first, kind=None),
        reference=(majority[0], reference),
        odd=(odd[0], stream),
        odd_ranks=odd,
        others=majority,
        decided=2 * len(majority) > len(majority) + len(odd),
    )


def _apart(modules: Sequence[Integers], until: int) -> int:
    """Return the first position at which members name different modules, ``until`` where none before does.

    Units of equal size are gathered for one another without any error.
    """
    together = np.stack([numbers[:until] for numbers in modules if len(numbers) >= until])
    apart = np.flatnonzero((together != together[0]).any(axis=0) & (together >= 0).all(axis=0))
    return int(apart[0]) if len(apart) else until


def _agree(reference: Stream, odd: Stream) -> bool:
    """Return whether all that had to agree did, paired as the backend paired it."""
    return all(a.signature == b.signature for a, b in zip(reference.tokens, odd.tokens, strict=False))


def _labels_say_so(reference: Stream, odd: Stream, alignment: Alignment) -> bool:
    """Return whether steps and batches line up better when the calls are aligned than call for call."""
    if not reference.labels or not odd.labels:
        return False
    straight = min(len(reference.labels), len(odd.labels))
    unaligned = sum(reference.labels[n] != odd.labels[n] for n in range(straight))
    aligned = sum(reference.labels[i] != odd.labels[j] for i, j in alignment.pairs)
    return aligned < unaligned


def _explains_the_stop(reference: Stream, odd: Stream, alignment: Alignment) -> bool:
    """Return whether the alignment leaves fewer calls unpaired at the end than pairing call for call."""
    last_i, last_j = alignment.pairs[-1]
    left_over = (len(reference.tokens) - last_i - 1) + (len(odd.tokens) - last_j - 1)
    return left_over < abs(len(reference.tokens) - len(odd.tokens))


def at_odd_step(run: Run, calls: pd.DataFrame, group: GroupCalls, labels: Labels, d: Divergence) -> Divergence | None:
    """Return a divergence where it began, if that was a step with more or fewer passes on the odd ranks.

    A pass more has the calls of any other: they are paired with those of the others' next step, and what fails is
    the end of the run.
    """
    if d.made is None or d.expected is None:
        return None
    ours, theirs = labels.passes(d.expected.rank), labels.passes(d.made.rank)
    step = next((step for step in sorted(ours.keys() & theirs.keys()) if ours[step] != theirs[step]), None)
    if step is None or step >= min(d.made.step, d.expected.step):
        return None
    forwards, backwards = (theirs[step][n] - ours[step][n] for n in (0, 1))
    if not forwards or forwards != backwards:
        return None
    longer = d.stream if forwards > 0 else d.reference
    begun = sum(passes[0] for number, passes in ours.items() if number < step) + min(ours[step][0], theirs[step][0])
    position = next((n for n, label in enumerate(longer.labels) if label[-1] > begun), None)
    if position is None or position >= min(d.where.reference, d.where.odd):
        return None
    kind = Kind.EXTRA if forwards > 0 else Kind.LEFT_OUT
    found = divergence_at(
        run,
        calls,
        group,
        labels,
        Departure(reference=position, odd=position, kind=kind),
        reference=(d.expected.rank, d.reference),
        odd=(d.made.rank, d.stream),
        odd_ranks=d.odd,
        others=d.others,
        decided=d.decided,
    )
    return replace(found, passes=f"step {step}: {theirs[step][0]} forwards against {ours[step][0]}")
