"""The pipeline of a run: its stages and schedule from the messages between ranks, and what its bubble is made of."""

import weakref
from dataclasses import dataclass

from distdiag.analyzers.performance import Measured
from distdiag.analyzers.performance.pipeline.bubble import Bubble, bubble_of
from distdiag.analyzers.performance.pipeline.families import Chosen, chosen_of
from distdiag.analyzers.performance.pipeline.schedule import NoPipelineError, Schedule, schedule_of
from distdiag.analyzers.performance.pipeline.stages import Layout
from distdiag.analyzers.performance.pipeline.told import told_schedule
from distdiag.run import Run

NOT_WHOLE = "no step after the warm-up was measured on all ranks of the pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline that ranks train in."""

    layout: Layout
    schedule: Schedule
    bubble: Bubble | None
    why_no_bubble: str | None
    """None where there is one."""


_chosen: weakref.WeakKeyDictionary[Run, Chosen] = weakref.WeakKeyDictionary()
"""Findings and the report ask; the answers live as long as their run."""


def layout(run: Run) -> Layout | str:
    """Return the pipeline stages of a run's ranks, or why messages do not make them any."""
    return _chosen_in(run).layout


def pipeline_of(run: Run, measured: Measured) -> Pipeline | str | None:
    """Return the pipeline of a run; why its messages are none; None where there are no messages."""
    if not run.calls["p2p"].any():
        return None
    chosen = _chosen_in(run)
    found = chosen.layout
    if isinstance(found, str):
        return found
    try:
        schedule = schedule_of(chosen.messages, found, told_schedule(run))
    except NoPipelineError as error:
        return str(error)
    unmeasured = measured.unknown.get("shares") or measured.unknown.get("steps")
    bubble = None if unmeasured else bubble_of(run.engine, measured, found, schedule)
    return Pipeline(
        layout=found,
        schedule=schedule,
        bubble=bubble,
        why_no_bubble=None if bubble is not None else unmeasured or NOT_WHOLE,
    )


def is_folded(run: Run) -> bool:
    """Return whether stages go down the ranks and up again, so that the first rank also holds the last stage."""
    told = told_schedule(run)
    return told is not None and told.is_folded


def _chosen_in(run: Run) -> Chosen:
    known = _chosen.get(run)
    if known is None:
        known = _chosen[run] = chosen_of(run)
    return known
