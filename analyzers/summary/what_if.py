"""What the simulations of a job say, for the report: how much is lost, where, and what mending each part gives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from distdiag.analyzers.performance import Measured
from distdiag.analyzers.performance.causes import causes_of
from distdiag.analyzers.performance.dependencies import Graph, Vertex
from distdiag.analyzers.performance.job import BACKWARD, FORWARD, NANO, OPTIMIZER, Job, Numbers
from distdiag.analyzers.performance.simulator import measured_seconds
from distdiag.analyzers.performance.what_if import Fix, WhatIf, simulations_of, what_if, why_not
from distdiag.findings import Finding, Severity
from distdiag.run import Run

COMMUNICATION = "communication"
OWN: dict[str, str] = {
    "data": "data",
    "forward": FORWARD,
    "backward": BACKWARD,
    "optimizer": OPTIMIZER,
    "checkpoint": "checkpoint",
    "other": "other",
}
"""Parts of a step and the kinds of operations they are, in their order."""
ENOUGH_STEPS = 8
FARTHEST = 0.1
"""What the simulated steps may differ from the measured ones, as a share of these."""
SECONDS_AN_HOUR = 3600.0
SECONDS, RATIO = 9, 6
"""Decimals that are told of."""
OPERATIONS, STEPS = "operations", "steps"
SLOW = "DD2"


def recorded_what_if(measured: Measured) -> WhatIf | str:
    """Return the simulations of recorded steps, or why these logs do not allow them."""
    for reason in ("shares", "steps"):
        if reason in measured.unknown:
            return measured.unknown[reason]
    ledger = measured.ledger
    ranks = sorted(set(ledger["rank"].tolist()))
    if len(ranks) < 2:
        return "one rank waits for nobody"
    common = ledger.groupby("step")["rank"].nunique()
    steps = common.index[common == len(ranks)]
    if len(steps) < ENOUGH_STEPS:
        return f"{len(steps)} steps that all ranks recorded are too few"
    of, work = _job(ledger[ledger["step"].isin(steps)].sort_values(["rank", "step"]), ranks, steps.tolist())
    graph = _graph(len(OWN))
    took, simulated = float(of.measured_seconds.mean()), float(measured_seconds(graph, work).mean())
    if abs(simulated - took) > FARTHEST * took:
        return (
            f"steps that took {took:.3g} s would take {simulated:.3g} s if the ranks met once in each: they wait for "
            "one another during the step"
        )
    # The pace of the typical rank, as the findings compare ranks: with few ranks a mean holds much of the slow one.
    return simulations_of(of, graph, work, np.median(work, axis=(1, 2)))


def _job(ledger: pd.DataFrame, ranks: list[int], steps: list[int]) -> tuple[Job, Numbers]:
    """Return the job and its work, [parts, ranks, steps] seconds; communication is the last part."""
    shape = (len(ranks), len(steps))
    own = [ledger[f"{part}_ns"].to_numpy(dtype=float).reshape(shape) for part in OWN]
    transfer = (ledger["communication_ns"] - ledger["waiting_ns"]).to_numpy(dtype=float).reshape(shape)
    work: Numbers = np.stack([*own, transfer]) * NANO
    took = ledger["step_ns"].to_numpy(dtype=float).reshape(shape) * NANO
    nodes = pd.DataFrame(
        {"op": [*OWN.values(), COMMUNICATION], "seq": 0, "stage": 0, "start": 0, "chunk": -1, "microbatch": -1}
    )
    job = Job(
        nodes=nodes.assign(global_chunk=-1),
        start=np.zeros_like(work),
        end=np.broadcast_to(took, work.shape),
        ranks=np.array([ranks], dtype=np.int64),
        stages=(0,),
        dp=tuple(ranks),
        steps=tuple(steps),
        not_understood=(),
    )
    return job, work


def _graph(parts: int) -> Graph:
    """Return a chain of parts, and the meeting of all data-parallel ranks after it."""
    chain = [Vertex(members=(node,), meets=False, over_dp=False) for node in range(parts)]
    meeting = Vertex(members=(parts,), meets=True, over_dp=True)
    return Graph(
        vertices=(*chain, meeting),
        before={node: (node - 1,) if node else () for node in range(parts + 1)},
        last=(parts,),
    )


def simulations(run: Run, measured: Measured) -> tuple[dict[str, Any] | None, str | None]:
    """Return the simulations of a run, or why there are none.

    They rest on operations that were measured one by one, else on the recorded steps. Ratios named ``slowdown`` are
    step times over that of the ideal step, those named ``share`` the part of the loss that goes away when something
    is fixed. GPU-hours count the measured steps on all devices of the job.
    """
    answer: WhatIf | str | None = what_if(run) or why_not(run) or recorded_what_if(measured)
    if not isinstance(answer, WhatIf):
        return None, answer
    told = _told(run, answer)
    if not len(run.operations):
        told |= {"source": STEPS, "cause": None, "launch_delay": None, "microbatches": None}
    return told, None


def with_cause(measured: dict[str, Any], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the report's performance, the simulations of recorded steps with the cause that was found for them.

    Simulations of single operations know their own; of recorded steps the findings know more.
    """
    told = measured["what_if"]
    if told is None or told["source"] != STEPS:
        return measured
    slow = (each.name for each in findings if each.code.startswith(SLOW) and each.severity is not Severity.INFO)
    return {**measured, "what_if": {**told, "cause": next(slow, None)}}


def _told(run: Run, answer: WhatIf) -> dict[str, Any]:
    causes, of = causes_of(answer), answer.job
    last = answer.last_stage
    return {
        "source": OPERATIONS,
        "slowdown": _ratio(answer.slowdown),
        "waste": _ratio(1 - 1 / answer.slowdown),
        "cause": causes.word,
        "measured_step_seconds": _seconds(answer.measured),
        "step_seconds": _seconds(answer.simulated),
        "ideal_step_seconds": _seconds(answer.ideal),
        "launch_delay": _ratio(answer.measured / answer.simulated),
        "steps": len(of.steps),
        "stages": len(of.stages),
        "data_parallel_ranks": len(of.dp),
        "microbatches": of.microbatches,
        "worker_share": _ratio(answer.fixed_workers.share),
        "worker_share_additive": _ratio(answer.additive_workers),
        "slowest_workers": [
            {"rank": each.rank, "dp": each.dp, "stage": each.stage, "slowdown": _ratio(each.slowdown)}
            for each in answer.slowest
        ],
        "last_stage_share": _ratio(last.share) if last is not None else None,
        "last_stage_share_additive": _ratio(answer.additive_last_stage) if last is not None else None,
        "by_type": {op: _ratio(slowdown) for op, slowdown in answer.by_type.items()},
        "by_stage": {stage: _ratio(slowdown) for stage, slowdown in answer.by_stage.items()},
        "by_data_parallel_rank": {dp: _ratio(slowdown) for dp, slowdown in answer.by_dp.items()},
        "worker_slowdowns": _heat_map(answer),
        "fixing": _fixes(answer),
        "forward_backward_correlation": _ratio(causes.passes.correlation) if causes.passes else None,
        "microbatch_variation": _ratio(causes.passes.variation) if causes.passes else None,
        **_gpu_hours(run, answer),
        "left_out": list(of.not_understood),
    }


def _heat_map(answer: WhatIf) -> list[list[float | None]]:
    """Return the slowdown of each worker: a row per stage, a column per data-parallel rank."""
    of = answer.job
    rows = np.minimum.outer([answer.by_stage[stage] for stage in of.stages], [answer.by_dp[dp] for dp in of.dp])
    return [[_ratio(value) for value in row] for row in rows.tolist()]


def _fixes(answer: WhatIf) -> list[dict[str, Any]]:
    """Return what a step would take if one thing were at its usual pace, the greatest gain first."""
    of = answer.job
    workers = [each.rank for each in answer.slowest]
    fixes = [_fix(answer, "slowest workers", answer.fixed_workers, ranks=workers)]
    if len(of.stages) > 1:
        for row, (stage, fix) in enumerate(answer.fixed_stages.items()):
            fixes.append(_fix(answer, f"stage {stage}", fix, ranks=sorted(of.ranks[row].tolist())))
    fixes += [_fix(answer, op, fix) for op, fix in answer.fixed_types.items()]
    return sorted(fixes, key=lambda fix: (-fix["gain"], fix["what"]))


def _fix(answer: WhatIf, what: str, fix: Fix, ranks: list[int] | None = None) -> dict[str, Any]:
    return {
        "what": what,
        "ranks": ranks or [],
        "step_seconds": _seconds(fix.seconds),
        "gain": _ratio(1 - fix.seconds / answer.simulated),
        "share": _ratio(fix.share),
    }


def _gpu_hours(run: Run, answer: WhatIf) -> dict[str, Any]:
    """Return what the measured steps took of the devices of the whole job, and how much of it is lost."""
    on_cpu = len(run.calls) > 0 and bool((run.calls["device"] == "cpu").all())
    if run.world_size is None or on_cpu:
        return {"devices": None, "gpu_hours": None, "gpu_hours_wasted": None}
    hours = answer.measured * len(answer.job.steps) * run.world_size / SECONDS_AN_HOUR
    lost = (answer.simulated - answer.ideal) * len(answer.job.steps) * run.world_size / SECONDS_AN_HOUR
    return {"devices": run.world_size, "gpu_hours": _seconds(hours), "gpu_hours_wasted": _seconds(lost)}


def _seconds(value: float) -> float:
    return round(value, SECONDS)


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(value, RATIO)
