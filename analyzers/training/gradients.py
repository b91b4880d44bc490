"""Steps of an optimizer whose gradients were those of one rank alone."""

from dataclasses import dataclass

import pandas as pd

from distdiag.analyzers.training.checksums import averaged_now_and_then, calls_of_all, equal_after
from distdiag.analyzers.training.numerics import numerics_of
from distdiag.analyzers.training.peers import DataParallel, data_parallel, of_wrapper
from distdiag.run import Run

REDUCING = ("all_reduce", "all_reduce_coalesced", "reduce_scatter", "reduce_scatter_tensor", "all_gather_into_tensor")
HANDED_ON = (0.5, 1.5)
"""Times the bytes of the parameters that their owners broadcast in a step, each its share."""
SAYING_NOTHING = ("broadcast", "barrier")
ENOUGH_OF_THE_GRADIENTS = 0.5
"""Calls that carry so much of their bytes may have averaged them by hand, in a smaller type perhaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsynchronised:
    """Steps in which ranks of a group did not average their gradients."""

    group: DataParallel
    reason: str
    """``no_sync`` or ``bypassed``."""
    step: int
    """The first."""
    steps: int
    of_steps: int
    """Steps that these ranks recorded in all."""
    ranks: tuple[int, ...]
    handed_on: bool
    """Whether each parameter was handed to all by the rank that changed it, so that replicas stayed equal."""


def unsynchronised(run: Run) -> list[Unsynchronised]:
    """Return what is known to have stayed apart, the earliest first.

    Steps in which calls averaged as much by hand are in order, and those after which all replicas were equal, if that
    was not the doing of broadcasts alone. So are steps that ranks make by themselves until parameters are averaged.
    """
    found = []
    for group in data_parallel(run):
        rows = of_wrapper(numerics_of(run), group)
        rows = rows[rows["unsynchronised"].notna()][["rank", "step", "unsynchronised"]]
        if rows.empty:
            continue
        rows = rows[~_averaged_by_hand(run, group, rows)]
        if rows.empty or averaged_now_and_then(run, group):
            continue
        handed_on = _handed_on(run, group, rows)
        if not handed_on and equal_after(run, group, int(rows["step"].min())):
            continue
        step = int(rows["step"].min())
        at_step = rows[rows["step"] == step]
        steps = run.steps[run.steps["rank"].isin(group.members) & run.steps["end_ns"].notna()]
        found.append(
            Unsynchronised(
                group=group,
                reason=str(at_step["unsynchronised"].iloc[0]),
                step=step,
                steps=rows["step"].nunique(),
                of_steps=max(steps["step"].nunique(), rows["step"].nunique()),
                ranks=tuple(sorted({int(rank) for rank in at_step["rank"]})),
                handed_on=handed_on,
            )
        )
    return sorted(found, key=lambda each: (each.step, each.group.members, each.group.wrapper))


def _averaged_by_hand(run: Run, group: DataParallel, rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each row whether calls of its step may have averaged the gradients, or are no longer known."""
    calls = calls_of_all(run, group)
    calls = calls[calls["op"].isin(REDUCING) & calls["step"].isin(rows["step"])]
    last = run.steps[["rank", "step", "forwards"]].dropna()
    calls = calls.merge(last, on=["rank", "step"], suffixes=("", "_last"))
    # Passes before the last may well have averaged theirs.
    calls = calls[calls["forwards"] == calls["forwards_last"]]
    sent = calls.groupby(["rank", "step"])["size_bytes"].sum()
    known = run.calls.groupby("rank")["step"].min()
    enough = group.size_bytes * ENOUGH_OF_THE_GRADIENTS
    flags = [
        bool(sent.get((rank, step), 0) >= enough) or step < known.get(rank, 0)
        for rank, step in zip(rows["rank"], rows["step"], strict=True)
    ]
    return pd.Series(flags, index=rows.index, dtype=bool)


def _handed_on(run: Run, group: DataParallel, rows: pd.DataFrame) -> bool:
    """Return whether broadcasts, and nothing else that could hold gradients, moved the parameters in each such step."""
    calls = run.calls[run.calls["rank"].isin(group.members) & run.calls["step"].isin(rows["step"])]
    calls = calls[calls["backwards"] > 0]  # before, models are made equal
    handed = calls["op"] == SAYING_NOTHING[0]
    sums = [
        calls[kind].groupby(["rank", "step"])["size_bytes"].sum()
        for kind in (handed, ~calls["op"].isin(SAYING_NOTHING))
    ]
    keys = list(zip(rows["rank"], rows["step"], strict=True))
    least, most = (times * group.size_bytes for times in HANDED_ON)
    return all(least <= sums[0].get(key, 0) <= most and sums[1].get(key, 0) < least for key in keys)
