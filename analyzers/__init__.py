"""Analyzers: each module here finds one root cause. Its docstring is the manual of the finding.

To add one, write a module with ``CODE``, ``NAME`` and ``analyze(run)`` and name it in ``ANALYZERS``.
"""

if __name__ != "distdiag.analyzers":
    raise ImportError("these modules belong to distdiag: import distdiag.analyzers")

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from distdiag.analyzers import (
    checkpoint_corrupt,
    checkpoint_incomplete,
    checkpoint_stall,
    checkpoint_unverified,
    coarse_unit,
    communication_bound,
    compute_straggler,
    data_starvation,
    device_stuck,
    dtype_mismatch,
    duplicate_samples,
    gc_pause,
    group_creation_stuck,
    group_mismatch,
    host_memory_growth,
    input_straggler,
    insufficient_evidence,
    late_rank,
    logs_missing,
    logs_truncated,
    loss_scale_divergence,
    loss_spike,
    memory_fragmentation,
    memory_growth,
    memory_imbalance,
    missing_gradient_sync,
    near_memory_limit,
    non_finite,
    op_mismatch,
    order_deadlock,
    out_of_memory,
    p2p_deadlock,
    p2p_unmatched,
    pipeline_bubble,
    rank_died,
    rank_missing,
    recompilation,
    records_dropped,
    redundant_gradient_sync,
    replica_desync,
    root_mismatch,
    sequence_divergence,
    shape_mismatch,
    skipped_steps,
    slow_link,
    split_mismatch,
    stage_imbalance,
    step_time_change,
    thread_race,
    tiny_collectives,
    token_imbalance,
    transport_stuck,
    uneven_batches,
    unsynchronised_seeds,
)
from distdiag.analyzers.slowness.judged import settled
from distdiag.analyzers.summary.lineage import lineage
from distdiag.analyzers.summary.performance import performance
from distdiag.analyzers.summary.positions import positions
from distdiag.analyzers.summary.stacks import stacks_of
from distdiag.analyzers.summary.triage import triage
from distdiag.analyzers.summary.verdict import by_gravity, verdict_of
from distdiag.analyzers.summary.what_if import with_cause
from distdiag.errors import guard
from distdiag.findings import Finding, Report, Verdict
from distdiag.run import Run


class Analyzer(Protocol):
    """What an analyzer module has to have."""

    __name__: str
    CODE: str
    NAME: str

    def analyze(self, run: Run) -> Iterator[Finding]:
        """Yield what is found in a run; nothing where the evidence is missing."""


ANALYZERS: tuple[Analyzer, ...] = (
    logs_missing,
    logs_truncated,
    records_dropped,
    insufficient_evidence,
    compute_straggler,
    communication_bound,
    input_straggler,
    token_imbalance,
    stage_imbalance,
    pipeline_bubble,
    tiny_collectives,
    slow_link,
    gc_pause,
    recompilation,
    checkpoint_stall,
    data_starvation,
    step_time_change,
    redundant_gradient_sync,
    rank_missing,
    rank_died,
    late_rank,
    device_stuck,
    transport_stuck,
    op_mismatch,
    shape_mismatch,
    dtype_mismatch,
    split_mismatch,
    root_mismatch,
    sequence_divergence,
    order_deadlock,
    thread_race,
    p2p_deadlock,
    p2p_unmatched,
    group_creation_stuck,
    group_mismatch,
    out_of_memory,
    memory_growth,
    memory_fragmentation,
    near_memory_limit,
    host_memory_growth,
    memory_imbalance,
    coarse_unit,
    non_finite,
    loss_spike,
    replica_desync,
    loss_scale_divergence,
    missing_gradient_sync,
    duplicate_samples,
    uneven_batches,
    skipped_steps,
    unsynchronised_seeds,
    checkpoint_incomplete,
    checkpoint_corrupt,
    checkpoint_unverified,
)

ENDINGS = ("DD3", "DD4", "DD5", insufficient_evidence.CODE)
"""Families of what ends a job: stuck, memory, numerics; or that it is not known."""


def diagnose(run: Run) -> Report:
    """Return one verdict for a run, everything that was found, and what the report's tables need.

    An analyzer that fails costs what it would have found and not the verdict; that it failed is a finding.
    """
    findings = by_gravity(_findings(run, ANALYZERS))
    verdict = verdict_of(run, findings)
    attempts: tuple[Mapping[str, Any], ...] = ()
    goodput: Mapping[str, Any] | None = None
    with guard("join the attempts of the job"):
        attempts, goodput = lineage(run, verdict, _ended_by)
    measured, places = with_cause(performance(run, whole=settled(run)), findings), positions(run)
    return Report(
        verdict=verdict,
        findings=findings,
        positions=places,
        triage=triage(run, verdict, measured, places),
        performance=measured,
        data_quality=run.quality.as_dict(),
        stacks=stacks_of(run),
        attempts=attempts,
        goodput=goodput,
    )


def _ended_by(run: Run) -> Verdict:
    """Return what ended a former attempt."""
    asked = [analyzer for analyzer in ANALYZERS if analyzer.CODE.startswith(ENDINGS)]
    return verdict_of(run, by_gravity(_findings(run, asked)))


def _findings(run: Run, analyzers: Sequence[Analyzer]) -> Iterator[Finding]:
    failures: dict[str, str] = {}
    for analyzer in analyzers:
        found: list[Finding] = []
        attempt = guard(f"look for {analyzer.NAME}")
        with attempt:
            found += analyzer.analyze(run)
        if attempt.error is not None:
            failures[analyzer.NAME] = attempt.error
        yield from found
    if failures:
        yield insufficient_evidence.of_failures(failures)
