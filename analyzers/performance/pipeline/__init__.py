"""The pipeline of a run: its stages and schedule from the messages between ranks, and what its bubble is made of.

Where groups of several kinds exchange messages (rings of context parallelism …), those of one kind are a family: of one
description, or without any, of one size. A family is a pipeline's where its messages connect ranks in chains whose two
ends do not do the same: the first stage sends before it gets anything, the last one does not. In a ring of two, both
ends send as much, and as early.
"""

import re
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from distdiag.analyzers.investigation.issued import group_name
from distdiag.analyzers.performance import Measured
from distdiag.analyzers.performance.pipeline.bubble import Bubble, bubble_of
from distdiag.analyzers.performance.pipeline.messages import Messages, messages_of
from distdiag.analyzers.performance.pipeline.schedule import NoPipelineError, Schedule, schedule_of, told_schedule
from distdiag.analyzers.performance.pipeline.stages import Layout, layout_of
from distdiag.run import Run

NAMED_PIPELINE = re.compile(r"(?:^|[^a-z])(?:pp|pipe(?:line)?)(?:[^a-z]|$)", re.IGNORECASE)
"""How jobs call the groups of their pipelines."""
SEVERAL = "groups of several kinds exchange messages in chains, and nothing tells which of them are pipelines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The messages that are a pipeline's, and the stages that they connect, or why there are none."""

    messages: Messages
    layout: Layout | str


def chosen_of(run: Run) -> Chosen:
    """Return the messages of a run that are a pipeline's."""
    everything = messages_of(run)
    together = layout_of(everything, run.ranks)
    families = _families(run)
    if isinstance(together, Layout) or len(families) < 2:
        return Chosen(messages=everything, layout=together)
    chosen = {name: _in_family(run, groups) for name, groups in families.items()}
    pipelines = {name: each for name, each in chosen.items() if isinstance(each.layout, Layout)}
    named = {name: each for name, each in pipelines.items() if NAMED_PIPELINE.search(name)}
    candidates = named or {name: each for name, each in pipelines.items() if not _is_ring(each)}
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    return Chosen(messages=everything, layout=SEVERAL if candidates else str(together))


def _families(run: Run) -> Mapping[str, frozenset[str]]:
    """Return the groups that exchange messages, by kind."""
    calls = run.calls
    messages = calls.loc[calls["p2p"].to_numpy(), ["group_key", "members"]].drop_duplicates("group_key")
    found: dict[str, set[str]] = {}
    for key, members in zip(messages["group_key"].astype(str), messages["members"], strict=True):
        name = key.partition("[")[0]
        described = group_name(run, name, members)
        kind = described if described != name else f"{len(members or ())} members"
        found.setdefault(kind, set()).add(key)
    return {kind: frozenset(keys) for kind, keys in found.items()}


def _in_family(run: Run, groups: Collection[str]) -> Chosen:
    messages = messages_of(run, groups)
    return Chosen(messages=messages, layout=layout_of(messages, run.ranks))


def _is_ring(chosen: Chosen) -> bool:
    """Return whether the two ends of each chain do the same: they send as much, and before they get anything or not."""
    layout, exchanges = chosen.layout, chosen.messages.exchanges
    if isinstance(layout, str):
        return False
    for chain in layout.chains:
        first, last = exchanges.get((chain[0], chain[1])), exchanges.get((chain[-1], chain[-2]))
        if first is None or last is None or (first.sends_first > 0) != (last.sends_first > 0):
            return False
    return True


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
