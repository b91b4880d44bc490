"""Which ranks do the same work: those of one pipeline stage; without a pipeline, all."""

from collections.abc import Mapping

from distdiag.analyzers.performance.pipeline import layout
from distdiag.run import Run


def stages_of(run: Run) -> Mapping[int, int]:
    """Return the pipeline stage of each rank, all 0 where messages do not connect ranks in chains of one length."""
    found = layout(run)
    return dict.fromkeys(run.ranks, 0) if isinstance(found, str) else found.stage_of


def roles_of(run: Run) -> list[list[int]]:
    """Return the ranks of each role, in the order of stages."""
    stages = stages_of(run)
    return [[rank for rank in sorted(stages) if stages[rank] == stage] for stage in sorted(set(stages.values()))]
