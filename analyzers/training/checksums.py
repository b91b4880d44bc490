"""Where data-parallel peers first were not equal: their replicas, where these were checked, and their loss scales."""

from dataclasses import dataclass

import pandas as pd

from distdiag.analyzers.training.numerics import first_nonfinite, numerics_of
from distdiag.analyzers.training.peers import DataParallel, beside, by_hand, data_parallel, of_wrapper
from distdiag.replicas import Check, Disagreement, compared
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Desync:
    """Replicas of one group that are not equal."""

    group: DataParallel
    step: int
    """First step before whose update they were seen to differ."""
    equal_step: int | None
    """Last step before it at which they were checked, and equal."""
    found: Disagreement


def desyncs(run: Run) -> list[Desync]:
    """Return the first disagreement of each group of replicas, the earliest first."""
    groups = [group for group in (*data_parallel(run), *by_hand(run)) if not group.shards]
    found = [desync for group in groups for desync in _of_group(run, group) if not averaged_now_and_then(run, group)]
    return sorted(found, key=lambda each: (each.step, each.group.members, each.group.wrapper))


def gone_apart_beside(run: Run) -> list[Desync]:
    """Return the parameters that ranks train beside a wrapper, that were equal and are no longer."""
    found = [desync for group in beside(run) for desync in _of_group(run, group) if desync.equal_step is not None]
    return sorted(found, key=lambda each: (each.step, each.group.members, each.group.wrapper))


def equal_after(run: Run, group: DataParallel, step: int) -> bool:
    """Return whether all members were checked in some later step, and equal in the first such."""
    rows = of_wrapper(numerics_of(run), group)
    rows = rows[rows["checksum"].notna() & (rows["step"] > step)]
    counts = rows.groupby("step")["rank"].nunique()
    whole = counts[counts == len(group.members)].index
    return len(whole) > 0 and rows[rows["step"] == whole.min()]["checksum"].nunique() == 1


def _with_equal_gradients(rows: pd.DataFrame, members: int) -> "pd.Index[int]":
    """Return the steps in which all members had the same gradients: then they cannot be meant to go apart."""
    per_step = rows.groupby("step").agg(
        told=("gradients", "count"), values=("gradients", "nunique"), ranks=("rank", "nunique")
    )
    alike = (per_step["values"] == 1) & (per_step["told"] == members) & (per_step["ranks"] == members)
    return per_step.index[alike]


def _of_group(run: Run, group: DataParallel) -> list[Desync]:
    rows = of_wrapper(numerics_of(run), group)
    rows = rows[rows["checksum"].notna()].drop_duplicates(["rank", "step"])
    if group.by_hand:
        rows = rows[rows["step"].isin(_with_equal_gradients(rows, len(group.members)))]
    spoiled = first_nonfinite(run, group.members)
    if spoiled is not None:
        rows = rows[rows["step"] <= spoiled]  # not-a-number has many forms, and who has which says nothing
    per_step = rows.groupby("step").agg(ranks=("rank", "nunique"), values=("checksum", "nunique"))
    together = per_step[per_step["ranks"] > 1]
    apart = together[together["values"] > 1]
    if apart.empty:
        return []
    step = int(apart.index.min())
    equal = together[(together["values"] == 1) & (together.index < step)].index
    columns = (rows[rows["step"] == step][name].tolist() for name in ("rank", "checksum", "digests"))
    checks = {int(rank): Check(int(value), bytes(digests)) for rank, value, digests in zip(*columns, strict=True)}
    found = compared(checks, len(group.members))
    equal_step = int(equal.max()) if len(equal) else None
    return [] if found is None else [Desync(group=group, step=step, equal_step=equal_step, found=found)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSplit:
    """A step in which peers had different loss scales."""

    group: DataParallel
    step: int
    scales: dict[int, float]
    equal_step: int | None
    """Last step before it in which they had the same."""
    steps: int
    """Steps in which they differ, of ``compared``."""
    compared: int


def scale_splits(run: Run) -> list[ScaleSplit]:
    """Return the first split of each data-parallel group, the earliest first; each set of members once."""
    numerics = numerics_of(run)
    rows = numerics[numerics["loss_scale"].notna()].drop_duplicates(["rank", "step"])
    found: dict[tuple[int, ...], ScaleSplit] = {}
    for group in (*data_parallel(run), *by_hand(run)):
        mine = rows[rows["rank"].isin(group.members)]
        per_step = mine.groupby("step").agg(ranks=("rank", "nunique"), values=("loss_scale", "nunique"))
        compared = per_step[per_step["ranks"] > 1]
        apart = compared[compared["values"] > 1]
        if apart.empty or group.members in found:
            continue
        step = int(apart.index.min())
        equal = compared[(compared["values"] == 1) & (compared.index < step)].index
        at_step = mine[mine["step"] == step]
        found[group.members] = ScaleSplit(
            group=group,
            step=step,
            scales=dict(zip(at_step["rank"].tolist(), at_step["loss_scale"].tolist(), strict=True)),
            equal_step=int(equal.max()) if len(equal) else None,
            steps=len(apart),
            compared=len(compared),
        )
    return sorted(found.values(), key=lambda each: (each.step, each.group.members))
