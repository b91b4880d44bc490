"""Loss scales of data-parallel peers, and the first step in which they were not the same."""

from dataclasses import dataclass

from distdiag.analyzers.training.peers import DataParallel, data_parallel
from distdiag.analyzers.training.records import numerics_of
from distdiag.run import Run


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
    for group in data_parallel(run):
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
