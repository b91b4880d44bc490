"""Step times of a job in which some operations take what they took, and all others what is usual for their kind."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from distdiag.analyzers.performance.dependencies import Graph
from distdiag.analyzers.performance.job import Numbers
from distdiag.analyzers.performance.simulator import Work, simulate

Kept = npt.NDArray[np.bool_]
"""[N, D]: whether a node keeps its measured time on a data-parallel rank."""
NUMBERS_AT_ONCE = 1 << 17
"""One array of a simulation: a few hundred of them live at a time, and together they stay below a GiB."""


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
