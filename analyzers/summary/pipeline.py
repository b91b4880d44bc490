"""What the report says of a pipeline: stages, schedule, its bubble beside the formula, and what would make it less."""

from collections.abc import Mapping
from typing import Any

from distdiag.analyzers.performance import Measured
from distdiag.analyzers.performance.pipeline import Pipeline, pipeline_of
from distdiag.analyzers.performance.pipeline.bubble import Bubble, formula
from distdiag.run import Run

MORE = (2, 4, 8, 16)
"""Times the micro-batches there are, for which the bubble is foretold."""
SECOND_NS = 1e9
DIGITS = 4


def pipeline_in(run: Run, measured: Measured) -> tuple[dict[str, Any] | None, str | None]:
    """Return the pipeline of a run, or why its messages are none; neither where there are no messages.

    Shares are of the pipeline's time in a step: without data loading, optimizer, checkpoints and collectives within a
    stage.
    """
    found = pipeline_of(run, measured)
    if not isinstance(found, Pipeline):
        return None, found
    schedule, layout = found.schedule, found.layout
    return {
        "schedule": schedule.name,
        "why_unknown": schedule.why_unknown,
        "stages": len(layout.stages),
        "copies": len(layout.chains),
        "microbatches": schedule.microbatches,
        "virtual_stages": schedule.virtual_stages,
        "steps": found.bubble.steps if found.bubble is not None else 0,
        "bubble": _bubble(found.bubble) if found.bubble is not None else None,
        "why_no_bubble": found.why_no_bubble,
        "per_stage": _per_stage(found),
        "with_more_microbatches": _foretold(found),
    }, None


def _bubble(bubble: Bubble) -> Mapping[str, float | None]:
    excess = None if bubble.formula is None else max(0.0, bubble.measured - bubble.formula)
    shares = {
        "measured": bubble.measured,
        "formula": bubble.formula,
        "excess": excess,
        "imbalance": bubble.imbalance,
        "transfers": bubble.transfers,
        "rest": bubble.rest,
    }
    return {name: None if share is None else round(share, DIGITS) for name, share in shares.items()}


def _per_stage(pipeline: Pipeline) -> list[dict[str, Any]]:
    times = pipeline.bubble.stages if pipeline.bubble is not None else [None] * len(pipeline.layout.stages)
    return [
        {
            "stage": stage,
            "ranks": list(ranks),
            "busy_seconds": None if each is None else round(each.busy_ns / SECOND_NS, 6),
            "idle_seconds": None if each is None else round(each.idle_ns / SECOND_NS, 6),
            "bubble": None if each is None else round(each.idle_share, DIGITS),
        }
        for stage, (ranks, each) in enumerate(zip(pipeline.layout.stages, times, strict=True))
    ]


def _foretold(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return what the formula says of more micro-batches; nothing where it does not hold for the schedule."""
    schedule = pipeline.schedule
    if not schedule.has_formula or schedule.microbatches is None or schedule.virtual_stages is None:
        return []
    return [
        {
            "microbatches": times * schedule.microbatches,
            "bubble": round(
                formula(len(pipeline.layout.stages), times * schedule.microbatches, schedule.virtual_stages), DIGITS
            ),
        }
        for times in MORE
    ]
