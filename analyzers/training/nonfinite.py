"""Values that are not finite: on which ranks, in which step, and where they came from."""

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from distdiag.analyzers.training.records import numerics_of
from distdiag.run import Run

WORDS = ("nan", "inf", "infinity")
LOCAL = ("loss", "gradient")
"""What a rank computed before anything of its peers was added to it."""


def is_nonfinite(value: Any) -> bool:
    """Return whether a logged value is not finite; JSON has no such numbers, they are logged as words."""
    if isinstance(value, str):
        return value.lower().lstrip("+-") in WORDS
    return isinstance(value, float) and not math.isfinite(value) and not pd.isna(value)


def nonfinite_rows(run: Run) -> pd.DataFrame:
    """Return a row per rank, step and name: ``loss``, ``gradient`` or ``grad_norm`` that was not finite.

    Gradients that overflow under a loss scaler are how it finds its scale: they are no rows.
    """
    numerics = numerics_of(run)
    told = numerics[numerics["nonfinite"].map(len) > 0][["rank", "step", "nonfinite"]].explode("nonfinite")
    told = told.rename(columns={"nonfinite": "name"})
    scaled = set(numerics[numerics["loss_scale"].notna()]["rank"])
    told = told[(told["name"] == "loss") | ~told["rank"].isin(scaled)]
    steps = run.steps
    said = steps[steps["facts"].map(lambda facts: is_nonfinite(facts.get("loss"))).astype(bool)][["rank", "step"]]
    known = set(numerics[numerics["loss"].notna()]["rank"])
    said = said[~said["rank"].isin(known)].assign(name="loss")
    return pd.concat([told, said], ignore_index=True).drop_duplicates().sort_values(["step", "rank", "name"])


def first_nonfinite(run: Run, ranks: Iterable[int]) -> int | None:
    """Return the first step in which any of some ranks had a value that was not finite."""
    rows = nonfinite_rows(run)
    steps = rows[rows["rank"].isin(set(ranks))]["step"]
    return None if steps.empty else int(steps.min())
