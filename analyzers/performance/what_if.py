"""How long a step would take if every operation of a kind took the same time, and whose doing the rest is.

The measured steps are simulated again with some operations at their usual time (SMon, OSDI 2025): what only one
stage, one data-parallel rank or one kind of operation costs, and how much of the loss goes away if it is fixed.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distdiag.analyzers.performance import job
from distdiag.analyzers.performance.dependencies import Graph, graph_of
from distdiag.analyzers.performance.job import Job, Numbers, job_of
from distdiag.analyzers.performance.simulator import (
    Kept,
    ideal_seconds,
    measured_seconds,
    seconds_with_one_rank,
    step_seconds,
    usual_of,
    work_of,
)
from distdiag.run import Run

SLOWEST_WORKERS = 0.03
"""Share of workers, rounded up, that is asked whether fixing them mends the job."""
FORWARD_MESSAGES, BACKWARD_MESSAGES = "forward-pp-comm", "backward-pp-comm"
_MERGED = {
    job.FORWARD_SEND: FORWARD_MESSAGES,
    job.FORWARD_RECV: FORWARD_MESSAGES,
    job.BACKWARD_SEND: BACKWARD_MESSAGES,
    job.BACKWARD_RECV: BACKWARD_MESSAGES,
}
NOTHING_LOST_SECONDS = 1e-9
MOST_NAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What a step would take if some operations took their usual time, the others what they took."""

    seconds: float
    share: float | None
    """Of what is lost; below 0 or above 1 where what is fixed and what is not hide one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One data-parallel rank of one pipeline stage."""

    rank: int
    dp: int
    stage: int
    slowdown: float
    """Of a step in which only its data-parallel rank, or only its stage, took its measured time: the lesser."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class WhatIf:
    """The simulations of a job; times are seconds, means over its steps."""

    job: Job
    work: Numbers
    """[N, D, K]: what each operation took by itself."""
    measured: float
    simulated: float
    """With nothing between the operations."""
    ideal: float
    by_stage: Mapping[int, float]
    """Slowdown against the ideal step if only this stage took its measured time."""
    by_dp: Mapping[int, float]
    by_type: Mapping[str, float]
    workers: tuple[Worker, ...]
    """By rank."""
    slowest: tuple[Worker, ...]
    """The worst first."""
    fixed_workers: Fix
    """The slowest ones."""
    fixed_stages: Mapping[int, Fix]
    fixed_types: Mapping[str, Fix]
    additive_workers: float | None
    """Share of the loss that is there if only the slowest workers took their measured time."""
    additive_last_stage: float | None

    @property
    def slowdown(self) -> float:
        """Return how many times as long a step takes as the ideal one."""
        return self.simulated / self.ideal

    @property
    def last_stage(self) -> Fix | None:
        """Return what fixing the last of several pipeline stages would give."""
        return self.fixed_stages[self.job.stages[-1]] if len(self.job.stages) > 1 else None


_answers: weakref.WeakKeyDictionary[Run, WhatIf | str | None] = weakref.WeakKeyDictionary()
"""Several analyzers and the summary ask; the answer, or why there is none, lives as long as its run."""


def what_if(run: Run) -> WhatIf | None:
    """Return the simulations of a run; None where its operations are not known or make no sense together."""
    answer = _answer(run)
    return answer if isinstance(answer, WhatIf) else None


def why_not(run: Run) -> str | None:
    """Return why operations that were measured cannot be simulated; None where they can, or there are none."""
    answer = _answer(run)
    return answer if isinstance(answer, str) else None


def _answer(run: Run) -> WhatIf | str | None:
    if run not in _answers:
        _answers[run] = _simulated(run) if len(run.operations) else None
    return _answers[run]


def _simulated(run: Run) -> WhatIf | str:
    of = job_of(run.operations)
    if of is None:
        names = ", ".join(sorted(map(str, run.operations["op"].unique()))[:MOST_NAMES])
        return f"none of the kinds of operations is understood: {names}"
    graph = graph_of(of)
    if graph is None:
        return "operations wait for one another in a circle: are sequence numbers and start times right?"
    return simulations_of(of, graph, work_of(of, graph))


def simulations_of(of: Job, graph: Graph, work: Numbers, usual: Numbers | None = None) -> WhatIf | str:
    """Return all simulations of a job whose operations took ``work`` by themselves, or why there are none."""
    usual = usual_of(of, work) if usual is None else usual
    if ideal_seconds(graph, usual) <= NOTHING_LOST_SECONDS:
        return "the operations take no time"
    return _Simulations(of, graph, work, usual).answer()


class _Simulations:
    """The scenarios of one job."""

    def __init__(self, of: Job, graph: Graph, work: Numbers, usual: Numbers) -> None:
        self._job, self._graph, self._work, self._usual = of, graph, work, usual
        self._measured = float(measured_seconds(graph, work).mean())
        self._ideal = ideal_seconds(graph, usual)
        self._stage = of.nodes["stage"].to_numpy()
        self._kind = of.nodes["op"].replace(_MERGED).to_numpy()
        self._kinds = sorted(set(self._kind.tolist()))

    def answer(self) -> WhatIf:
        """Run all scenarios: first what each part costs, then what fixing the worst workers gives."""
        of, stages = self._job, range(len(self._job.stages))
        parts = [*(self._everywhere(self._stage == s) for s in stages), *self._of_kinds()]
        only = self._seconds(parts)
        fixed = [self._fix(seconds) for seconds in self._seconds([~part for part in parts])]
        per_stage = only[: len(stages)] / self._ideal
        per_dp = seconds_with_one_rank(self._graph, self._work, self._usual) / self._ideal
        workers = self._workers(per_stage, per_dp)
        slowest = sorted(workers, key=lambda each: (-each.slowdown, each.rank))
        slowest = slowest[: int(np.ceil(SLOWEST_WORKERS * len(workers)))]
        of_slowest = self._of_workers(slowest)
        with_slowest, without = self._seconds([of_slowest, ~of_slowest])
        return WhatIf(
            job=of,
            work=self._work,
            measured=float(of.measured_seconds.mean()),
            simulated=self._measured,
            ideal=self._ideal,
            by_stage=dict(zip(of.stages, per_stage.tolist(), strict=True)),
            by_dp=dict(zip(of.dp, per_dp.tolist(), strict=True)),
            by_type=dict(zip(self._kinds, (only[len(stages) :] / self._ideal).tolist(), strict=True)),
            workers=tuple(sorted(workers, key=lambda each: each.rank)),
            slowest=tuple(slowest),
            fixed_workers=self._fix(without),
            fixed_stages=dict(zip(of.stages, fixed[: len(stages)], strict=True)),
            fixed_types=dict(zip(self._kinds, fixed[len(stages) :], strict=True)),
            additive_workers=self._share(with_slowest - self._ideal),
            additive_last_stage=self._share(only[len(stages) - 1] - self._ideal),
        )

    def _seconds(self, scenarios: list[Kept]) -> Numbers:
        return step_seconds(self._graph, self._work, self._usual, scenarios)

    def _fix(self, seconds: float) -> Fix:
        return Fix(seconds=float(seconds), share=self._share(self._measured - seconds))

    def _share(self, seconds: float) -> float | None:
        lost = self._measured - self._ideal
        return float(seconds / lost) if abs(lost) > NOTHING_LOST_SECONDS else None

    def _everywhere(self, nodes: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Kept:
        return np.repeat(nodes[:, None], len(self._job.dp), axis=1)

    def _of_kinds(self) -> list[Kept]:
        return [self._everywhere(self._kind == kind) for kind in self._kinds]

    def _of_workers(self, workers: list[Worker]) -> Kept:
        kept = np.zeros(self._work.shape[:2], dtype=bool)
        for worker in workers:
            kept[self._stage == self._job.stages.index(worker.stage), self._job.dp.index(worker.dp)] = True
        return kept

    def _workers(self, per_stage: Numbers, per_dp: Numbers) -> list[Worker]:
        of = self._job
        return [
            Worker(rank=int(of.ranks[s, d]), dp=dp, stage=stage, slowdown=float(min(per_stage[s], per_dp[d])))
            for s, stage in enumerate(of.stages)
            for d, dp in enumerate(of.dp)
        ]
