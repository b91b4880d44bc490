"""Batches that ranks had in a step, in words."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from distdiag.run import Run

MOST_IDS = 16


def batches_of_step(run: Run, step: int) -> pd.DataFrame:
    """Return what came of data loaders in a step: a row per rank and batch."""
    rows = run.batches[(run.batches["edge"] == "end") & (run.batches["step"] == step) & ~run.batches["exhausted"]]
    return rows.sort_values(["rank", "loader", "batch"])


def batches_in_words(run: Run, ranks: Iterable[int], step: int) -> tuple[str, ...]:
    """Return which batches some ranks had in a step."""
    rows = batches_of_step(run, step)
    return tuple(
        f"rank {row['rank']} had batch {row['batch']} of its loader{_samples(row)} in step {step}"
        for row in rows[rows["rank"].isin(set(ranks))].to_dict("records")
    )


def _samples(row: Mapping[Any, Any]) -> str:
    ids = row["ids"]
    if not isinstance(ids, tuple) or not ids:
        return ""
    more = ", …" if len(ids) > MOST_IDS or row["thinned"] else ""
    return f" (samples {', '.join(map(str, ids[:MOST_IDS]))}{more})"
