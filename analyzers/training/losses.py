"""Losses and gradient norms per rank and step, from recording or from what the script said of its steps."""

from typing import Any

import pandas as pd

from distdiag.run import Run


def numbers(run: Run, name: str) -> pd.DataFrame:
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
