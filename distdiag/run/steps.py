"""Several records of one step as one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdiag.deferred import deferred

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = deferred("pandas")


def merged_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per rank and step: the first known value of each column, facts and rollups of all records."""
    ordered = steps.sort_values(["rank", "step"], kind="stable", ignore_index=True)
    repeated = ordered.duplicated(["rank", "step"], keep=False)
    if not repeated.any():
        return ordered
    several = ordered[repeated].groupby(["rank", "step"], sort=True)
    merged = several.first().reset_index()
    for name in ("facts", "rollups"):
        united = several[name].agg(_united).reset_index(drop=True)
        merged[name] = united.astype("object")
    merged = merged[ordered.columns].astype(ordered.dtypes.to_dict())
    both = pd.concat([ordered[~repeated], merged])
    return both.sort_values(["rank", "step"], kind="stable", ignore_index=True)


def _united(values: pd.Series[Any]) -> dict[str, Any]:
    united: dict[str, Any] = {}
    for value in values:
        united.update(value)
    return united
