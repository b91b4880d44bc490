"""The loss jumped far above what it was.

What it means
    One step had a loss that nothing before it prepared for: an unusual batch, gradients that grew for some steps, a
    learning rate that is too high, or a wrong result of one rank's hardware. If it comes back down within some steps
    the run may go on; if it does not, what came before is lost.

How it is found
    The mean loss over all ranks, and each rank's own, is compared with the 50 steps before: 1.5 times their median (3
    times for a single rank), ten times as much as it usually changes from step to step on a logarithmic scale, and
    above the highest of the last 100. Losses that are zero or negative are not judged.

What to do
    Look at the samples of that step on the ranks that are named. Where the norm of the gradients grew before, clip it
    or lower the learning rate; go back to the checkpoint before the step and leave its batches out.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from distdiag.analyzers._wording import counted, named
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.samples import batches_in_words
from distdiag.analyzers.training.series import Jump, first_jump
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD502"
NAME = "loss-spike"
FACTOR = 1.5
FACTOR_OF_ONE_RANK = 3.0
"""Losses of single ranks scatter more than their mean does."""
SPREADS = 10.0
"""Standard deviations of the change from step to step, by its quartiles; 8 were not reached in 2,600 healthy steps."""
STEPS_AFTER = 20
BACK = 1.1
GROWN = 2.0


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first jump of the loss."""
    losses = _numbers(run, "loss")
    if losses.empty:
        return
    whole = losses.dropna()
    jump = first_jump(whole.mean(axis=1), factor=FACTOR, spreads=SPREADS)
    alone = {
        int(str(rank)): found
        for rank, series in losses.items()
        if (found := first_jump(series.dropna(), factor=FACTOR_OF_ONE_RANK, spreads=SPREADS)) is not None
    }
    steps = [found.step for found in (jump, *alone.values()) if found is not None]
    if not steps:
        return
    step = min(steps)
    ranks = tuple(sorted(rank for rank, found in alone.items() if found.step == step))
    some = bool(ranks) and 2 * len(ranks) < len(losses.columns)
    shown = alone[ranks[0]] if ranks and (some or jump is None or jump.step != step) else jump
    if shown is not None:
        yield _finding(run, losses, shown, ranks if some else ())


def _finding(run: Run, losses: pd.DataFrame, jump: Jump, culprits: tuple[int, ...]) -> Finding:
    subject = f"the loss of {named(culprits)}" if culprits else "the loss"
    series = losses[list(culprits)].mean(axis=1) if culprits else losses.mean(axis=1)
    others = [rank for rank in losses.columns if int(str(rank)) not in culprits]
    of_others = f", {losses.loc[jump.step, others].median():.4g} on the others" if culprits and others else ""
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=(
            f"{subject} jumped to {jump.value:.4g} in step {jump.step}, {_times(jump.value / jump.usual)} times the "
            f"{jump.usual:.4g} of the steps before{of_others}\n{_afterwards(series, jump)}"
        ),
        culprits=culprits,
        step=jump.step,
        evidence=(
            f"{jump.spreads:.0f} times as much above them as the loss usually changes from step to step (logarithms)",
            *_norms(run, jump),
            *batches_in_words(run, culprits, jump.step),
            data_in_words(run),
        ),
        action=(
            f"look at the samples of {named(culprits) if culprits else 'all ranks'}: distdiag replay-info {jump.step}",
            f"if it does not come down, go back to the checkpoint before step {jump.step} and leave its batches out",
        ),
    )


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"


def _afterwards(series: "pd.Series[float]", jump: Jump) -> str:
    later = series[series.index > jump.step].head(STEPS_AFTER)
    if later.empty:
        return "It was the last step that was recorded."
    down = later[later <= BACK * jump.usual]
    if len(down):
        return f"It was back down after {counted(int(down.index[0]) - jump.step, 'step')}."
    return f"In the {counted(len(later), 'step')} after, its median was {later.median():.4g}."


def _norms(run: Run, jump: Jump) -> tuple[str, ...]:
    """Return how the norm of the gradients was before, if it grew: it often does so some steps earlier."""
    norms = _numbers(run, "grad_norm")
    before = norms.mean(axis=1)
    before = before[(before.index < jump.step) & (before.index >= jump.step - 60)]
    if len(before) < 20:
        return ()
    usual, last = float(before.iloc[:-5].median()), float(before.iloc[-5:].max())
    if last < GROWN * usual:
        return ()
    return (f"the norm of the gradients had grown from {usual:.3g} to {last:.3g} in the five steps before",)


def _numbers(run: Run, name: str) -> pd.DataFrame:
    """Return ``loss`` or ``grad_norm`` as a table with a row per step and a column per rank; finite values only."""
    rows = run.numerics[run.numerics[name].notna()].drop_duplicates(["rank", "step"], keep="last")
    values = pd.to_numeric(rows[name], errors="coerce")
    table = pd.DataFrame({"rank": rows["rank"], "step": rows["step"], "value": values})
    if table.empty:
        told = run.steps["facts"].map(lambda facts: _number(facts.get(name)))
        table = pd.DataFrame({"rank": run.steps["rank"], "step": run.steps["step"], "value": told.astype("float64")})
    table = table[table["value"].abs() < float("inf")]
    return table.pivot(index="step", columns="rank", values="value").sort_index()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
