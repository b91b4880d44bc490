"""What each operation of a pipeline- and data-parallel step waits for before it can begin.

Operations that meet (a send and its receive, the members of a collective) are one vertex: it starts when the last of
them is launched, and each then ends after its own transfer. An operation is launched when those before it have ended.
The rules are those of the published what-if analysis of stragglers (SMon, OSDI 2025), for Megatron's schedules.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import pandas as pd

from distdiag.analyzers.performance import job
from distdiag.analyzers.performance.job import BACKWARD, FORWARD, Job

Edge = tuple[int, int]
"""A node that has to end, and the node that is launched then."""

_ALONE_OVER_DP = (job.GATHER, job.SCATTER, job.SEPARATE)
"""Collectives of the data-parallel ranks of one stage."""
_PAIRED = ((FORWARD, job.FORWARD_SEND, job.FORWARD_RECV, 1), (BACKWARD, job.BACKWARD_SEND, job.BACKWARD_RECV, -1))
"""Direction, its send and receive, and how far the receiving chunk of the model is from the sending one."""
_TAIL = (job.GARBAGE, job.LAYERNORM, job.EMBEDDING, job.SCATTER, job.CLIP, job.OPTIMIZER)
_OVERLAPPED_TAIL = (job.LAYERNORM, job.EMBEDDING, job.SEPARATE, job.CLIP, job.OPTIMIZER)
"""Where gradients are reduced while the backward pass still runs: the reduce-scatters stand before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """Nodes that start together."""

    members: tuple[int, ...]
    meets: bool
    """They transfer something: the time that a member waits for the others is not its own."""
    over_dp: bool
    """All data-parallel ranks start together too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The vertices in an order in which they can be computed."""

    vertices: tuple[Vertex, ...]
    before: Mapping[int, tuple[int, ...]]
    """Per node, those that have to end before it is launched."""
    last: tuple[int, ...]
    """The nodes of which the latest ends the step."""


def graph_of(of: Job) -> Graph | None:
    """Return what waits for what; None where the operations would wait for one another in a circle."""
    schedule = _Schedule(of)
    tails = [_tail(schedule, stage) for stage in range(schedule.stages)]
    edges = [
        *_streams(schedule),
        *_messages(schedule),
        *_gathers(schedule),
        *(edge for tail in tails for edge in tail.edges),
    ]
    before: dict[int, set[int]] = defaultdict(set)
    for earlier, later in edges:
        before[later].add(earlier)
    vertices = _vertices(schedule)
    home = {member: number for number, vertex in enumerate(vertices) for member in vertex.members}
    waits = {number: {home[n] for m in vertex.members for n in before[m]} for number, vertex in enumerate(vertices)}
    try:
        order = tuple(TopologicalSorter(waits).static_order())
    except CycleError:
        return None
    return Graph(
        vertices=tuple(vertices[number] for number in order),
        before={node: tuple(sorted(before[node])) for node in home},
        last=tuple(node for tail in tails for node in tail.last),
    )


class _Schedule:
    """Looks nodes up by kind and stage, and the computations that sends and receives are for."""

    def __init__(self, of: Job) -> None:
        nodes = of.nodes
        self.stages = len(of.stages)
        chunks = nodes.loc[nodes["op"].isin((FORWARD, BACKWARD)), "chunk"]
        self.chunks = max(int(chunks.max()) + 1, 1) if len(chunks) else 1
        self.nodes: list[int] = nodes.index.tolist()
        self.op: list[str] = nodes["op"].tolist()
        self.seq: list[int] = nodes["seq"].tolist()
        self.stage: list[int] = nodes["stage"].tolist()
        self.start: list[int] = nodes["start"].tolist()
        self.chunk: list[int] = nodes["chunk"].tolist()
        self._microbatch: list[int] = nodes["microbatch"].tolist()
        self._place = self._places(nodes)
        self._by_kind: dict[tuple[str, int], list[int]] = defaultdict(list)
        for node in sorted(self.nodes, key=lambda each: self.seq[each]):
            self._by_kind[self.op[node], self.stage[node]].append(node)

    def _places(self, nodes: pd.DataFrame) -> list[int]:
        """Return which chunk of the whole model each node computes: without virtual stages that is its stage."""
        if self.chunks == 1:
            return self.stage
        known = nodes["global_chunk"].where(nodes["global_chunk"] >= 0, nodes["chunk"] * self.stages + nodes["stage"])
        return [int(place) for place in known]

    def of(self, op: str, stage: int) -> list[int]:
        """Return the nodes of a kind on a stage, in their order."""
        return self._by_kind.get((op, stage), [])

    def stream(self, stage: int) -> list[int]:
        """Return the computations of a stage in the order in which they ran."""
        computations = [*self.of(FORWARD, stage), *self.of(BACKWARD, stage)]
        return sorted(computations, key=lambda node: (self.start[node], self.seq[node], self.op[node]))

    def served(self, direction: str, stage: int, shift: int) -> list[int]:
        """Return the computations whose results go to (or come from) the chunk ``shift`` places further."""
        most = self.stages * self.chunks
        return [node for node in self.of(direction, stage) if 0 <= self._place[node] + shift < most]

    def key(self, node: int, shift: int = 0) -> tuple[int, int]:
        """Return what a computation and the one that follows it ``shift`` chunks further have in common."""
        which = self.seq[node] if self.chunks == 1 else self._microbatch[node]
        return which, self._place[node] + shift


def _streams(schedule: _Schedule) -> Iterator[Edge]:
    for stage in range(schedule.stages):
        stream = schedule.stream(stage)
        yield from itertools.pairwise(stream)
        backwards = [position for position, node in enumerate(stream) if schedule.op[node] == BACKWARD]
        receives = schedule.of(job.BACKWARD_RECV, stage)
        if backwards and backwards[0] >= 2 and receives:
            yield stream[backwards[0] - 2], receives[0]


def _messages(schedule: _Schedule) -> Iterator[Edge]:
    """Yield the edges of sends and receives: receives are posted early, and no computation waits for a send."""
    for stage in range(schedule.stages):
        for direction, send, recv, shift in _PAIRED:
            sends, receives = schedule.of(send, stage), schedule.of(recv, stage)
            yield from itertools.pairwise(sends)
            yield from itertools.pairwise(receives)
            yield from zip(schedule.served(direction, stage, shift), sends, strict=False)
            computations = schedule.of(direction, stage)
            position = {node: number for number, node in enumerate(computations)}
            for receive, node in zip(receives, schedule.served(direction, stage, -shift), strict=False):
                yield receive, node
                if position[node]:
                    yield computations[position[node] - 1], receive


def _gathers(schedule: _Schedule) -> Iterator[Edge]:
    for stage in range(schedule.stages):
        forwards, scatters = schedule.of(FORWARD, stage), schedule.of(job.SCATTER, stage)
        for gather in schedule.of(job.GATHER, stage):
            chunk = schedule.chunk[gather] if schedule.chunk[gather] >= 0 else schedule.seq[gather]
            of_chunk = [node for node in forwards if schedule.chunks == 1 or schedule.chunk[node] == chunk]
            yield from ((gather, node) for node in of_chunk[:1])
            if schedule.seq[gather] == 0:
                yield from ((gather, node) for node in scatters[:1])


@dataclass(frozen=True, slots=True)
class _Tail:
    edges: list[Edge]
    last: list[int]


def _tail(schedule: _Schedule, stage: int) -> _Tail:
    """Return what follows the last computation of a stage, one kind after the other; absent kinds are left out."""
    gate = schedule.stream(stage)[-1:]
    if not schedule.of(job.SEPARATE, stage):
        return _chain(schedule, stage, gate, _TAIL)
    collected = _chain(schedule, stage, gate, (job.GARBAGE,))
    scatters = schedule.of(job.SCATTER, stage)
    edges = [
        *collected.edges,
        *((last, scatter) for scatter in scatters for last in _last_of(schedule, stage, scatter)),
    ]
    rest = _chain(schedule, stage, [*scatters[-1:], *collected.last], _OVERLAPPED_TAIL)
    return _Tail([*edges, *rest.edges], rest.last)


def _last_of(schedule: _Schedule, stage: int, scatter: int) -> Sequence[int]:
    """Return the last backward pass of the chunk whose gradients a reduce-scatter sums."""
    chunk = schedule.chunk[scatter] if schedule.chunk[scatter] >= 0 else schedule.seq[scatter]
    backwards = schedule.of(BACKWARD, stage)
    return [node for node in backwards if schedule.chunks == 1 or schedule.chunk[node] == chunk][-1:]


def _chain(schedule: _Schedule, stage: int, gate: list[int], ops: Iterable[str]) -> _Tail:
    edges: list[Edge] = []
    for op in ops:
        for node in schedule.of(op, stage):
            edges += [(earlier, node) for earlier in gate]
            gate = [node]
    return _Tail(edges, gate)


def _vertices(schedule: _Schedule) -> list[Vertex]:
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for direction, send, recv, shift in _PAIRED:
        for stage in range(schedule.stages):
            for node, computation in zip(
                schedule.of(send, stage), schedule.served(direction, stage, shift), strict=False
            ):
                together[direction, *schedule.key(computation, shift)].append(node)
            for node, computation in zip(
                schedule.of(recv, stage), schedule.served(direction, stage, -shift), strict=False
            ):
                together[direction, *schedule.key(computation)].append(node)
    for node in schedule.nodes:
        op, seq = schedule.op[node], schedule.seq[node]
        if op in (job.EMBEDDING, job.CLIP):
            together[op, seq].append(node)
    met = [Vertex(members=tuple(members), meets=True, over_dp=key[0] == job.CLIP) for key, members in together.items()]
    seen = {node for vertex in met for node in vertex.members}
    transfers = (*_ALONE_OVER_DP, *(op for _, send, recv, _ in _PAIRED for op in (send, recv)))
    alone = [
        Vertex(members=(node,), meets=schedule.op[node] in transfers, over_dp=schedule.op[node] in _ALONE_OVER_DP)
        for node in schedule.nodes
        if node not in seen
    ]
    return [*met, *alone]
