"""Recorded peaks beside the estimate: by rank and phase, with what the estimate does not explain."""

from collections.abc import Sequence
from dataclasses import dataclass

import ibis
import pandas as pd

from distdiag.memory_estimate.estimate import Estimate
from distdiag.memory_estimate.ledger import Item
from distdiag.run import Run

FIRST_STEP = "step 0"
LATER_STEPS = "later steps"
BESIDE_TENSORS = (Item.CONTEXT, Item.FRAGMENTATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The most that one rank was seen to use in one phase."""

    rank: int
    phase: str
    """The user's phase, or the first step, or the steps behind it."""
    measure: str
    """``allocated`` and ``reserved`` are the CUDA allocator's, ``process`` is the memory of the whole process."""
    recorded_bytes: int
    estimated_bytes: int
    """Of the tensors for ``allocated`` and ``process``, with the fragmentation margin for ``reserved``."""

    @property
    def unexplained_bytes(self) -> int:
        """Return what was recorded beyond the estimate; negative where the estimate is too high."""
        return self.recorded_bytes - self.estimated_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A run beside an estimate."""

    rows: tuple[Recorded, ...]
    notes: tuple[str, ...] = ()
    """What keeps the two from being the same thing."""


def compare(run: Run, base: Estimate) -> Comparison:
    """Return the peaks of each rank and phase; a rank that recorded no memory is left out.

    The stage of a rank follows from the usual order, tensor ranks next to one another and pipeline stages outermost.
    """
    rows = _rows(run, base)
    notes = []
    if run.world_size is not None and run.world_size != base.layout.world:
        notes.append(f"the run had {run.world_size} ranks, the estimate is for {base.layout.world}")
    if any(row.measure == "process" for row in rows):
        notes.append("a process holds Python and its libraries too, which no estimate has")
    if any(row.measure != "process" for row in rows):
        notes.append("the allocator's peaks are those since the start of the run, not of the phase alone")
    return Comparison(rows=rows, notes=tuple(notes))


def _rows(run: Run, base: Estimate) -> tuple[Recorded, ...]:
    peaks = run.engine.frame(_peaks(run))
    measures = {"allocated": "peak_allocated_bytes", "reserved": "peak_reserved_bytes", "process": "rss_bytes"}
    on_device = bool(peaks["peak_allocated_bytes"].notna().any())
    used = ("allocated", "reserved") if on_device else ("process",)
    tables = [_beside(peaks, measure, measures[measure], base) for measure in used]
    rows = [row for table in tables for row in table]
    return tuple(sorted(rows, key=lambda row: (row.measure, row.rank, row.phase)))


def _peaks(run: Run) -> ibis.Table:
    """Return the largest values of each rank and phase, of the whole run and not only of its end."""
    samples, edges = run.table("memory"), run.table("phase")
    begins = edges.filter(edges.edge == "begin").select("rank", "number", "phase", begin_ns=edges.time_ns)
    ends = edges.filter(edges.edge == "end").select("rank", "number", end_ns=edges.time_ns)
    spans = begins.left_join(ends, ["rank", "number"]).select("rank", "phase", "begin_ns", "end_ns")
    inside = samples.left_join(
        spans,
        [
            samples.rank == spans.rank,
            samples.time_ns >= spans.begin_ns,
            spans.end_ns.isnull() | (samples.time_ns <= spans.end_ns),
        ],
    )
    by_step = ibis.ifelse(inside.step == 0, FIRST_STEP, LATER_STEPS)
    named = inside.mutate(where=ibis.coalesce(inside.phase, by_step))
    return (
        named.group_by("rank", "where")
        .aggregate(
            rss_bytes=named.rss_bytes.max(),
            peak_allocated_bytes=named.peak_allocated_bytes.max(),
            peak_reserved_bytes=named.peak_reserved_bytes.max(),
        )
        .order_by("rank", "where")
    )


def _beside(peaks: pd.DataFrame, measure: str, column: str, base: Estimate) -> Sequence[Recorded]:
    known = peaks[peaks[column].notna()]
    left_out = (Item.CONTEXT,) if measure == "reserved" else BESIDE_TENSORS
    ranks_of_stage = max(base.layout.world // base.layout.pipeline, 1)
    rows = []
    for rank, where, size in zip(known["rank"], known["where"], known[column], strict=True):
        stage = base.stages[min(int(rank) // ranks_of_stage, len(base.stages) - 1)]
        estimated = stage.total_bytes - stage.size_of(*left_out)
        rows.append(
            Recorded(
                rank=int(rank),
                phase=str(where),
                measure=measure,
                recorded_bytes=int(size),
                estimated_bytes=estimated,
            )
        )
    return rows
