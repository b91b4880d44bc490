"""Steps are spent in very many very small collectives.

What it means
    Each collective costs some time whatever its size. Below some 64 KiB that fixed cost is nearly all of it, and
    hundreds of them in a step cost more than one large one. It is what wrapping every small layer as an FSDP unit of
    its own does, or reducing each metric by itself.

How it is found
    At least 32 collectives in a step, half of them under 64 KiB, which take at least 20 % of the step, waiting for
    late ranks left out of it.

What to do
    Wrap larger units (a transformer block, not its layers), use larger buckets, join small tensors into one before
    reducing them.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from distdiag.analyzers._wording import counted, seconds
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.slowness.judged import Judged, judge
from distdiag.analyzers.slowness.sites import waiting_at
from distdiag.analyzers.slowness.telling import gained
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD207"
NAME = "tiny-collectives"
MANY = 32
"""Calls a step: fewer are not worth joining."""
SMALL_BYTES = 64 << 10
"""Below, the fixed cost of a collective outweighs that of its bytes on every network that is in use."""
ENOUGH_STEPS = 8
MATTERS = 0.2
MOST_UNITS = 3


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding if small collectives fill the steps."""
    judged = judge(run)
    kinds = judged.measured.groups
    if kinds.empty or not judged.roles or len(judged.roles[0].steps) < ENOUGH_STEPS:
        return
    found = _tiny(judged, kinds)
    if found is None:
        return
    per_step, spent_ns, step_ns = found
    size = _weighted_median(kinds["size_bytes"], kinds["calls"])
    place = waiting_at(run, judged.roles[0].ranks, from_step=int(judged.roles[0].steps[0]))
    at = f" at {short(place[1])}" if place is not None else ""
    yield Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=f"{per_step:.0f} collectives a step{at}, half of them under {_size(size)}, take {seconds(spent_ns)} of "
        f"each {seconds(step_ns)} step\n{_units(kinds)}If they cost nothing, "
        f"{gained(spent_ns, step_ns)}.",
        site=place[1] if place is not None else None,
        op=place[0] if place is not None else None,
        cause="wrapping" if (kinds["module"] != "").any() else "size",
        lost_share=spent_ns / step_ns,
        evidence=(*_largest(kinds), data_in_words(run)),
        action=(
            "wrap whole blocks instead of single layers as FSDP units"
            if (kinds["module"] != "").any()
            else "join small tensors into one before they are reduced, or use larger buckets",
            "put what is reduced for logging into one tensor, and reduce it every few steps",
        ),
    )


def _tiny(judged: Judged, kinds: pd.DataFrame) -> tuple[float, float, float] | None:
    """Return calls a step, the time they take, and the step's, where they are many, small and matter."""
    rank_steps = len(judged.measured.ledger)  # those of the calls: logs with gaps have fewer that all ranks share
    per_step = float(kinds["calls"].sum() / rank_steps)
    small = kinds["size_bytes"].astype("int64") < SMALL_BYTES
    if per_step < MANY or kinds.loc[small, "calls"].sum() < 0.5 * kinds["calls"].sum():
        return None
    moved = (kinds["exposed_ns"] - kinds["waiting_ns"])[small].sum()
    spent, step = float(moved / rank_steps), float(np.median(judged.roles[0].step_ns))
    return (per_step, spent, step) if spent >= MATTERS * step else None


def _units(kinds: pd.DataFrame) -> str:
    units = kinds[kinds["module"] != ""]
    count = units["module"].nunique()
    if not count:
        return ""
    return f"They gather and scatter {counted(count, 'FSDP unit')} of {_size(units['size_bytes'].median())}: too fine. "


def _largest(kinds: pd.DataFrame) -> tuple[str, ...]:
    """Name the ops, and what the calls of each take."""
    per_op = kinds.groupby("op", observed=True)[["calls", "exposed_ns", "waiting_ns"]].sum()
    per_op = per_op.sort_values(["calls"], ascending=False, kind="stable")
    return tuple(
        f"{op}: {counted(int(calls), 'call')} over all ranks and steps, {seconds((exposed - waiting) / calls)} each"
        for op, calls, exposed, waiting in list(per_op.itertuples())[:MOST_UNITS]
    )


def _weighted_median(sizes: "pd.Series[int]", calls: "pd.Series[int]") -> float:
    order = np.argsort(sizes.to_numpy(dtype=float), kind="stable")
    running = np.cumsum(calls.to_numpy(dtype=float)[order])
    return float(sizes.to_numpy(dtype=float)[order][np.searchsorted(running, running[-1] / 2)])


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1024:.0f} KiB" if size_bytes >= 1024 else f"{size_bytes:.0f} bytes"
