"""Runs the steps of a job again with other durations: every scenario, data-parallel rank and step at once."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from distdiag.analyzers.performance import job
from distdiag.analyzers.performance.dependencies import Graph
from distdiag.analyzers.performance.job import Job, Numbers

BEFORE_ITS_START_SECONDS = -0.010
"""Work that seems shorter than that below zero is a transfer that ended before the last member was seen to start:
clocks or records are wrong there, and it counts as none. Less is the jitter of clocks and stays."""
MEAN_OF = (job.FORWARD, job.BACKWARD, job.OPTIMIZER, job.GARBAGE)
"""Balancing computations leaves their sum as it is, so the mean is what each would take. A transfer that was late to
finish is a fault of the network and not work to be shared, so of those the median is usual."""
Work = Callable[[int], Numbers]
"""Durations of a node, [scenarios, data-parallel ranks, steps] or what broadcasts to it."""
Kept = npt.NDArray[np.bool_]
"""[N, D]: whether a node keeps its measured time on a data-parallel rank."""
NUMBERS_AT_ONCE = 1 << 17
"""One array of a simulation: a few hundred of them live at a time, and together they stay below a GiB."""


def work_of(of: Job, graph: Graph) -> Numbers:
    """Return what each operation took by itself in seconds, [N, D, K]: of transfers without waiting for the others.

    A transfer's work is its end less the latest start of those that it meets; its own duration never counts.
    """
    work: Numbers = of.end - of.start
    for vertex in graph.vertices:
        if vertex.meets:
            begun = of.start[list(vertex.members)].max(axis=0)
            if vertex.over_dp:
                begun = begun.max(axis=0, keepdims=True)
            for member in vertex.members:
                work[member] = of.end[member] - begun
    work[work <= BEFORE_ITS_START_SECONDS] = 0.0
    return work


def usual_of(of: Job, work: Numbers) -> Numbers:
    """Return how long each node would take if all operations of its kind took the same time, [N] seconds."""
    usual = np.zeros(len(work))
    for op, nodes in of.nodes.groupby("op").groups.items():
        durations = work[np.asarray(nodes)]
        usual[np.asarray(nodes)] = durations.mean() if op in MEAN_OF else np.median(durations)
    return usual


def simulate(graph: Graph, work: Work) -> Numbers:
    """Return how long each step takes in each scenario, [scenarios, K] seconds, with nothing between operations."""
    readers = Counter(earlier for node in graph.before for earlier in graph.before[node])
    readers.update(graph.last)
    ends: dict[int, Numbers] = {}
    for vertex in graph.vertices:
        launched: Numbers | None = None
        for member in vertex.members:
            for earlier in graph.before[member]:
                launched = ends[earlier] if launched is None else np.maximum(launched, ends[earlier])
        if launched is not None and vertex.over_dp:
            launched = launched.max(axis=1, keepdims=True)
        for member in vertex.members:
            if readers[member]:
                ends[member] = work(member) if launched is None else launched + work(member)
            for earlier in graph.before[member]:
                readers[earlier] -= 1
                if not readers[earlier]:
                    del ends[earlier]
    return _latest([ends[node] for node in graph.last])


def _latest(ends: list[Numbers]) -> Numbers:
    latest: npt.NDArray[np.float64] = ends[0]
    for end in ends[1:]:
        latest = np.maximum(latest, end)
    seconds: Numbers = latest.max(axis=1)
    return seconds


def step_seconds(graph: Graph, work: Numbers, usual: Numbers, scenarios: Sequence[Kept]) -> Numbers:
    """Return the mean step time of each scenario, [scenarios].

    ``work`` is [N, D, K], ``usual`` [N]: seconds.
    """
    _, workers, steps = work.shape
    sums: Numbers = np.zeros(len(scenarios))
    for block in _blocks(steps, max(1, NUMBERS_AT_ONCE // workers)):
        here = work[:, :, block]
        for some in _blocks(len(scenarios), max(1, NUMBERS_AT_ONCE // (workers * here.shape[2]))):
            sums[some] += simulate(graph, _mixed(here, usual, np.stack(scenarios[some]))).sum(axis=1)
    sums /= steps
    return sums


def measured_seconds(graph: Graph, work: Numbers) -> Numbers:
    """Return each step's time as measured, without what passes between operations, [K]."""
    blocks = _blocks(work.shape[2], max(1, NUMBERS_AT_ONCE // work.shape[1]))
    return np.concatenate([simulate(graph, _as_it_was(work[:, :, block]))[0] for block in blocks])


def ideal_seconds(graph: Graph, usual: Numbers) -> float:
    """Return the time of a step in which every operation takes what is usual for its kind."""
    return float(simulate(graph, lambda node: np.full((1, 1, 1), usual[node]))[0, 0])


def seconds_with_one_rank(graph: Graph, work: Numbers, usual: Numbers) -> Numbers:
    """Return the mean step time in which one data-parallel rank keeps its times, for each of them, [D].

    The other ranks are all alike then, so one of them stands for all.
    """
    _, workers, steps = work.shape
    sums: Numbers = np.zeros(workers)
    for block in _blocks(steps, NUMBERS_AT_ONCE):
        for some in _blocks(workers, max(1, NUMBERS_AT_ONCE // (2 * (block.stop - block.start)))):
            sums[some] += simulate(graph, _beside_another(work[:, some, block], usual, alone=workers == 1)).sum(axis=1)
    sums /= steps
    return sums


def _as_it_was(work: Numbers) -> Work:
    return lambda node: work[node][None]


def _mixed(work: Numbers, usual: Numbers, kept: Kept) -> Work:
    return lambda node: np.where(kept[:, node, :, None], work[node], usual[node])


def _beside_another(work: Numbers, usual: Numbers, *, alone: bool) -> Work:
    """Return the work of each rank in a scenario of its own, beside a rank that takes the usual time."""

    def pair(node: int) -> Numbers:
        own = work[node]
        return own[:, None] if alone else np.stack([own, np.full_like(own, usual[node])], axis=1)

    return pair


def _blocks(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
