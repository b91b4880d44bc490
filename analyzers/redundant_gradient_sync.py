"""Gradients are averaged in every micro-step of an accumulation, where once a step would do.

What it means
    A step that accumulates gradients over several micro-steps needs their average once, before the optimizer. A
    wrapper that is not told so averages after every backward: each time but the last for nothing.

How it is found
    In at least 80 % of the steps, of which there are at least 8, there are two or more backwards, and the same
    gradients (calls of the same kind, size and unit) are reduced in each of them. Reported as a warning where the
    superfluous ones cost at least 5 % of the step and 5 ms that no computing hides; where these logs hold no device
    times, as information. Where communication fills the steps anyway, ``communication-bound`` says it.

What to do
    Put all micro-steps but the last, forward and backward, under ``model.no_sync()``; with ``fully_shard`` call
    ``model.set_requires_gradient_sync(False)`` for them. Sharded models then hold whole gradients in between: where
    memory does not allow that, take larger micro-batches instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from distdiag.analyzers import communication_bound
from distdiag.analyzers._wording import seconds
from distdiag.analyzers.investigation.paths import location, short
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.performance import Measured
from distdiag.analyzers.slowness.judged import judge
from distdiag.analyzers.slowness.telling import gained
from distdiag.analyzers.training.memory import size
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

CODE = "DD214"
NAME = "redundant-gradient-sync"
REDUCING = ("all_reduce", "reduce_scatter")
SHARDED = "reduce_scatter"
KIND = ("group_key", "op", "size_bytes", "module")
"""What the calls that reduce the same gradients have in common."""
ENOUGH_STEPS = 8
NEARLY_ALL = 0.8
SAME_GRADIENTS = 0.5
"""Of the bytes that a step reduces, for which the same calls come in each of its backwards."""
LEAST_BYTES = 1 << 20
"""A step: reducing less costs a round trip, whatever is done."""
MATTERS = 0.05
LEAST_NS = 5e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Reductions of the same gradients in each backward of a step."""

    micro_steps: int
    step_bytes: float
    """Reduced in a step by a rank, all micro-steps together."""
    calls: pd.DataFrame

    @property
    def superfluous(self) -> float:
        """Return the share of the reductions that would not be needed."""
        return (self.micro_steps - 1) / self.micro_steps


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding if gradients are averaged more often than they are used."""
    repeated = _repeated(run)
    if repeated is None or any(each.cause == "every-micro-step" for each in communication_bound.analyze(run)):
        return
    measured = judge(run).measured
    told = measured.unknown.keys().isdisjoint(("shares", "steps")) and not measured.ledger.empty
    step_ns = float(measured.ledger["step_ns"].median()) if told else 0.0
    cost_ns = _exposed(measured, repeated) * repeated.superfluous if told else 0.0
    if told and cost_ns < max(LEAST_NS, MATTERS * step_ns):
        return
    yield _finding(run, repeated, cost_ns, step_ns)


def _repeated(run: Run) -> Repeated | None:
    calls = run.calls
    reducing = [op for op in calls["op"].cat.categories if op.startswith(REDUCING)]
    wanted = calls["op"].isin(reducing) & (calls["phase"] == "backward") & (calls["backwards"] > 0)
    calls = calls.loc[wanted, [*KIND, "rank", "step", "backwards", "path"]]
    passes = run.steps.loc[run.steps["backwards"].notna(), ["rank", "step", "backwards"]]
    passes = passes.rename(columns={"backwards": "passes"})
    if calls.empty or passes["step"].nunique() < ENOUGH_STEPS or passes["passes"].median() < 2:
        return None
    calls = calls.assign(kind=calls.groupby(list(KIND), observed=True, dropna=False).ngroup())
    of_kind = calls.groupby(["rank", "step", "kind"]).agg(times=("backwards", "nunique"), bytes=("size_bytes", "sum"))
    of_kind = of_kind.reset_index().merge(passes, on=["rank", "step"])
    each_time = (of_kind["times"] == of_kind["passes"]) & (of_kind["passes"] >= 2)
    of_step = of_kind.assign(again=of_kind["bytes"].where(each_time, 0)).groupby(["rank", "step"])
    sums = (
        of_step[["bytes", "again"]].sum().merge(passes.set_index(["rank", "step"]), left_index=True, right_index=True)
    )
    redundant = (sums["again"] >= SAME_GRADIENTS * sums["bytes"]) & (sums["again"] >= LEAST_BYTES)
    if redundant.sum() < NEARLY_ALL * len(passes):
        return None
    return Repeated(
        micro_steps=int(sums.loc[redundant, "passes"].median()),
        step_bytes=float(sums.loc[redundant, "again"].median()),
        calls=calls[calls["kind"].isin(of_kind.loc[each_time, "kind"])],
    )


def _exposed(measured: Measured, repeated: Repeated) -> float:
    """Return what these calls hold a rank up in a step with nobody late, in nanoseconds."""
    kinds = repeated.calls[["op", "size_bytes"]].astype({"op": "str"}).drop_duplicates()
    rows = measured.groups.assign(op=measured.groups["op"].astype("str")).merge(kinds, on=["op", "size_bytes"])
    return float((rows["exposed_ns"] - rows["waiting_ns"]).sum()) / max(len(measured.ledger), 1)


def _finding(run: Run, repeated: Repeated, cost_ns: float, step_ns: float) -> Finding:
    count, whole = repeated.micro_steps, size(repeated.step_bytes)
    less = f"{size(repeated.step_bytes / count)} instead of {whole}"
    told = f"\nWithout it, {gained(cost_ns, step_ns)}." if step_ns else ""
    frames = run.paths.get(int(np.asarray(repeated.calls["path"])[-1]), ())
    site = location(frames[-1]) if frames else None
    at = f" ({short(site)})" if site else ""
    sharded = bool(repeated.calls["op"].astype(str).str.startswith(SHARDED).any())
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING if step_ns else Severity.INFO,
        summary=f"gradients are averaged in each of {count} micro-steps of a step{at}: once, {less} of a rank, would do"
        f"{told}",
        site=site,
        cause="every-micro-step",
        lost_share=cost_ns / step_ns if step_ns else None,
        confidence=Confidence.HIGH if step_ns else Confidence.MEDIUM,
        evidence=(
            f"the same calls are made in each of {count} backwards of a step, {whole} a step and rank",
            *((f"they hold a rank up for {seconds(cost_ns / repeated.superfluous)} a step",) if step_ns else ()),
            data_in_words(run),
        ),
        action=(
            "call set_requires_gradient_sync(False) for all micro-steps but the last (no_sync() with FSDP1), if memory "
            "allows whole gradients in between"
            if sharded
            else "put all micro-steps but the last under model.no_sync(), their forward too",
        ),
    )
