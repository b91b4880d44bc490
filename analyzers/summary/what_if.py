"""What the simulations of a job say, for the report: how much is lost, where, and what mending each part gives."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from distdiag.analyzers.performance import Measured
from distdiag.analyzers.performance.causes import Causes, causes_of
from distdiag.analyzers.performance.recorded import recorded_what_if
from distdiag.analyzers.performance.what_if import Fix, WhatIf, what_if, why_not
from distdiag.findings import Finding, Severity
from distdiag.run import Run

SECONDS_AN_HOUR = 3600.0
SECONDS, RATIO = 9, 6
"""Decimals that are told of."""


OPERATIONS, STEPS = "operations", "steps"
SLOW = "DD2"


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
        "fixing": _fixes(answer, causes),
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


def _fixes(answer: WhatIf, causes: Causes) -> list[dict[str, Any]]:
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
