"""Ranks that go apart on purpose: each makes some steps of its own, and then their parameters are averaged."""

import pandas as pd

from distdiag.analyzers.training.peers import DataParallel, of_wrapper
from distdiag.analyzers.training.records import numerics_of
from distdiag.run import Run

AVERAGING = ("all_reduce", "all_reduce_coalesced")
MOSTLY = 0.5
"""Of the steps, in which gradients stay apart: else the wrapper averages them, and nobody has to besides."""
OF_THE_PARAMETERS = (0.5, 2.0)
"""Bytes that averaging them may carry, beside the gradients': in a smaller or in a larger type."""
AGAIN = 2


def averaged_now_and_then(run: Run, group: DataParallel) -> bool:
    """Return whether gradients of a group stay apart in most steps, and its parameters are averaged in some."""
    apart = of_wrapper(numerics_of(run), group)
    apart = apart[apart["unsynchronised"].notna()]
    made = run.steps[run.steps["rank"].isin(group.members) & run.steps["end_ns"].notna()]["step"].nunique()
    if apart.empty or apart["step"].nunique() < MOSTLY * made:
        return False
    calls = calls_of_all(run, group)
    calls = calls[calls["op"].isin(AVERAGING) & (calls["phase"] != "backward")]
    sent = calls.groupby(["rank", "step"])["size_bytes"].sum()
    least, most = (share * group.size_bytes for share in OF_THE_PARAMETERS)
    steps = sent[(sent >= least) & (sent <= most)].index.get_level_values("step").nunique()
    return AGAIN <= steps < made


def calls_of_all(run: Run, group: DataParallel) -> pd.DataFrame:
    """Return the calls on groups with all members of a group."""
    whole = run.calls["members"].map(lambda ranks: ranks is not None and set(group.members) <= set(ranks))
    calls: pd.DataFrame = run.calls[whole.astype("bool")]
    return calls
