"""What a job says of its pipeline itself: the class of its schedule, where recording saw it run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distdiag.events import PIPELINE_SCHEDULE
from distdiag.run import Run

SPLIT = {
    "ScheduleInterleavedZeroBubble": "interleaved zero bubble",
    "ScheduleZBVZeroBubble": "ZBV zero bubble",
    "ScheduleDualPipeV": "DualPipeV",
}
"""Schedules of PyTorch that split backwards: the formula of the bubble holds for none of them."""
FOLDED = frozenset({"ScheduleZBVZeroBubble", "ScheduleDualPipeV"})
"""Their stages go down the ranks and up again: the first rank also holds the last stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The schedule that every rank of a run said it runs."""

    schedule: str
    """Name of its class."""
    microbatches: int
    virtual_stages: int
    """Stages of each rank."""

    @property
    def name(self) -> str | None:
        """Return what people call it where messages would not tell it."""
        return SPLIT.get(self.schedule)

    @property
    def is_folded(self) -> bool:
        """Return whether the first rank also holds the last stage."""
        return self.schedule in FOLDED


def told_schedule(run: Run) -> Told | None:
    """Return the schedule that all ranks tell; None where they tell none, or several."""
    said = run.decisions[run.decisions["name"] == PIPELINE_SCHEDULE]
    values = [value for value in said["value"] if isinstance(value, Mapping)]
    told = {_told(value) for value in values}
    if len(told) != 1 or len(values) < len(said) or set(said["rank"]) != set(run.ranks):
        return None
    return told.pop()


def _told(value: Mapping[str, Any]) -> Told:
    return Told(
        schedule=str(value.get("schedule")),
        microbatches=int(value.get("microbatches") or 0),
        virtual_stages=int(value.get("stages") or 0),
    )
