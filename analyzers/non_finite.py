"""A loss or a gradient was not a finite number.

What it means
    One rank computed NaN or an infinity. The next averaging of gradients hands it to all ranks, the optimizer writes it
    into every parameter, and from then on all ranks have it and the log of the loss does not say who began.

How it is found
    Each rank records whether the loss that its backward began at was finite, and a few small gradients before those
    of peers are added to them. The first step and the ranks that had it then are reported. On the host it is said
    whether the model's input or its parameters already held such values; in the steps after the first one modules are
    watched too, and the first one whose output is not finite is named (``DISTDIAG_NUMERICS=modules`` does so from the
    start). Gradients that overflow under a loss scaler are how it finds its scale, and no finding. A loss that left
    all bounds on all ranks alike before is told as such: a warning, behind findings that name a rank or a line.

What to do
    Look at the samples of that rank in that step. If they are in order, run the step again: the same result points to
    the model or its learning rate, another one to the hardware of that rank.
"""

from collections.abc import Iterator

import pandas as pd

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.numerics import DIVERGED, LOCAL, diverged, nonfinite_rows, numerics_of
from distdiag.analyzers.training.samples import batches_in_words
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD501"
NAME = "non-finite"
WHAT = {"loss": "loss", "gradient": "gradient", "grad_norm": "norm of the gradients"}
ORIGINS = {
    "batch": "the batch that its model was called with already held such values",
    "parameters": "its model's parameters already held such values",
    "inside": "the batch and the parameters were finite: it was born in the model's forward or in the loss",
}
OF_MODULE = {
    "input": "what it was given was not finite already: an operation between modules, or the batch",
    "parameters": "its parameters were not finite by then",
    "inside": "what it was given and its parameters were finite: it was born there",
}


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first step in which something was not finite."""
    rows = nonfinite_rows(run)
    if rows.empty:
        return
    step = int(rows["step"].min())
    at_step = rows[rows["step"] == step]
    own = at_step[at_step["name"].isin(LOCAL)]
    ranks = tuple(sorted({int(rank) for rank in own["rank"]}))
    heard = {int(rank) for rank in run.numerics["rank"]}
    culprits = ranks if set(ranks) < heard else ()
    later = tuple(sorted({int(rank) for rank in rows["rank"]} - set(ranks)))
    if not culprits and (way := diverged(run, step)) is not None:
        yield _of_itself(step, ranks, way, run)
        return
    origin, told = _origins(run, step, ranks)
    recovered = _recovered(run, step)
    yield Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING if recovered else Severity.ERROR,
        summary=f"{_subject(at_step, ranks, culprits)} in step {step}\n{_then(step, culprits, later, recovered, run)}",
        culprits=culprits,
        victims=later if culprits else (),
        step=step,
        cause=origin,
        evidence=(*told, *batches_in_words(run, culprits, step), data_in_words(run)),
        action=_action(culprits, step, origin, told),
    )


def _of_itself(step: int, ranks: tuple[int, ...], way: tuple[float, float], run: Run) -> Finding:
    first, last = way
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=f"the loss left all bounds on all of {named(ranks) if ranks else 'the ranks'}, from {first:.3g} "
        f"at first to {last:.3g}, and was not finite in step {step}\n"
        "All ranks went the same way: that points to the learning rate or to the loss itself, not to a rank.",
        step=step,
        cause=DIVERGED,
        evidence=(data_in_words(run),),
        action=("lower the learning rate, or clip the gradients", "check that the loss has a minimum"),
    )


def _subject(at_step: pd.DataFrame, ranks: tuple[int, ...], culprits: tuple[int, ...]) -> str:
    names = set(at_step["name"])
    what = WHAT["loss" if "loss" in names else "gradient" if "gradient" in names else "grad_norm"]
    if culprits:
        return f"the {what} of {named(culprits)} was the first that was not finite,"
    if ranks:
        return f"the {what} was not finite on all of {named(ranks)} at once,"
    return f"the {what} was not finite,"


def _then(step: int, culprits: tuple[int, ...], later: tuple[int, ...], recovered: bool, run: Run) -> str:
    if recovered:
        return "The step was left out, and later losses are finite."
    if not culprits:
        return "Which rank began cannot be told from that."
    if later:
        return f"{named(later).capitalize()} had finite ones until then, and got it with the averaged gradients."
    last = int(run.steps["step"].max()) if len(run.steps) else step
    return "It did not spread." if last > step else "It was the last step that was recorded."


def _origins(run: Run, step: int, ranks: tuple[int, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Return the cause, and sentences on where the value came from."""
    numerics = numerics_of(run)
    rows = numerics[numerics["rank"].isin(ranks) & (numerics["step"] >= step)].sort_values("step")
    origins = rows[(rows["step"] == step) & rows["module"].isna() & rows["origin"].isin(list(ORIGINS))]
    told = [
        f"rank {rank}: {ORIGINS[origin]}"
        for rank, origin in dict(zip(origins["rank"].tolist(), origins["origin"].tolist(), strict=True)).items()
    ]
    cause = str(origins["origin"].iloc[0]) if len(origins) else None
    modules = rows[rows["module"].notna()].drop_duplicates("rank")
    # Once it is in the parameters, every module's output holds it, and the first of them tells nothing.
    modules = modules[(modules["origin"] != "parameters") | (modules["step"] == step)]
    for row in modules.to_dict("records"):
        told.append(
            f"rank {row['rank']}, step {row['step']}: the first output that was not finite was that of module "
            f"{row['module']}; {OF_MODULE.get(row['origin'], 'what it was given is not known')}"
        )
        if cause is None and row["step"] == step:
            cause = str(row["origin"])
    return cause, tuple(told)


def _recovered(run: Run, step: int) -> bool:
    """Return whether every rank had finite losses again in the steps after, as after a step that was left out."""
    losses = run.numerics[run.numerics["loss"].notna() & (run.numerics["step"] > step)]
    if losses.empty:
        return False
    last = losses.sort_values("step").groupby("rank")["loss"].last()
    return not any(isinstance(value, str) for value in last)


def _action(culprits: tuple[int, ...], step: int, origin: str | None, told: tuple[str, ...]) -> tuple[str, ...]:
    who = named(culprits) if culprits else "any rank"
    look = f"look at the samples of {who} in step {step}: distdiag replay-info {step}"
    again = f"run step {step} of {who} again from the last checkpoint: another result points to its hardware"
    modules = "set DISTDIAG_NUMERICS=modules in that run, to name the first module whose output is not finite"
    named_module = any("module" in text for text in told)
    if origin == "batch":
        return (look, "do not skip a batch on one rank alone: let all agree with an all_reduce of a flag")
    return (look, again) if named_module else (look, again, modules)
