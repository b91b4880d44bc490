"""How many tokens the batches of a step held, where the data loader's hook could count them."""

import pandas as pd

from distdiag.run import Run

COLUMNS = {"tokens": "batch_tokens", "tokens_squared": "batch_tokens_squared"}


def batches_of(run: Run, *, whole: bool) -> pd.DataFrame:
    """Return a row per rank and step with counted batches: batch_tokens, padding left out, and batch_tokens_squared.

    The second is the sum over samples of the squares of their tokens.
    """
    if whole:
        table = run.table("batch").filter(lambda batch: batch.tokens.notnull())
        sums = table.group_by("rank", "step").agg(**{name: table[name].sum() for name in COLUMNS})
        return run.engine.frame(sums).rename(columns=COLUMNS).astype("float64")
    counted = run.batches[run.batches["tokens"].notna()]
    return (
        counted.groupby(["rank", "step"])[list(COLUMNS)].sum().rename(columns=COLUMNS).astype("float64").reset_index()
    )
