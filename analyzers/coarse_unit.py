"""One FSDP unit holds most of the model: while it is gathered, sharding saves little memory.

What it means
    A sharded model is gathered unit by unit, and only the gathered unit is whole on every rank. A unit that holds
    most of the parameters makes the rank hold most of the model at once, and nothing can be computed while it comes.

How it is found
    The bytes that each unit gathers, from the sizes of its collectives. Reported where one unit gathers at least half
    of what all units do, at least 64 MiB, and at least 15 % of the highest use of memory: of the device where that
    was recorded, else of the process. A warning only where the device was at least 85 % full, or out of memory;
    otherwise information.

What to do
    Wrap smaller units: each transformer block by ``fully_shard`` (or an ``auto_wrap_policy``) before the whole model,
    embeddings and output layer by themselves.
"""

from collections.abc import Iterator

import pandas as pd

from distdiag.analyzers._wording import counted, named
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.memory import size
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

CODE = "DD406"
NAME = "coarse-unit"
GATHERING = ("all_gather", "_allgather_base", "allgather")
LEAST_BYTES = 64 << 20
DOMINATES = 0.5
"""Of what all units gather."""
NOTABLE = 0.15
"""Of the highest use of memory."""
NEAR = 0.85
"""Of the device: memory matters from there on."""
MOST_UNITS = 3


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding if one unit holds most of the model."""
    units = _units(run)
    if units.empty:
        return
    largest, unit_bytes, whole = str(units.index[0]), float(units.iloc[0]), float(units.sum())
    peak = _highest(run)
    if unit_bytes < max(LEAST_BYTES, DOMINATES * whole) or peak is None or unit_bytes < NOTABLE * peak[0]:
        return
    used, limit = peak
    matters = (limit is not None and used >= NEAR * limit) or bool((run.faults["fault"] == "out-of-memory").any())
    where = "device" if limit is not None else "process"
    only = "the only unit" if len(units) == 1 else f"one of {counted(len(units), 'unit')}"
    yield Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING if matters else Severity.INFO,
        summary=f"FSDP unit {largest}, {only}, gathers {size(unit_bytes)}: {100 * unit_bytes / whole:.0f} % of the "
        f"sharded model, {100 * unit_bytes / used:.0f} % of the {size(used)} that the {where} uses at most",
        cause="wrapping",
        confidence=Confidence.HIGH if limit is not None else Confidence.MEDIUM,
        evidence=(
            "the largest units: " + ", ".join(f"{unit} {size(each)}" for unit, each in units.head(MOST_UNITS).items()),
            f"on {named(run.ranks)}",
            data_in_words(run),
        ),
        action=(
            "wrap each block of the model as a unit of its own (fully_shard(block), or an auto_wrap_policy), before "
            "the model as a whole",
        ),
    )


def _units(run: Run) -> "pd.Series[float]":
    """Return the bytes that each unit gathers, the largest unit first."""
    calls = run.calls
    gathering = [op for op in calls["op"].cat.categories if op.startswith(GATHERING)]
    calls = calls[calls["op"].isin(gathering) & calls["module"].notna() & ~calls["p2p"]]
    each = calls[["module", "size_bytes", "members"]].drop_duplicates(["module", "size_bytes"])
    gathered = each["size_bytes"].astype("float64") * each["members"].map(lambda ranks: len(ranks or ()))
    units: pd.Series[float] = gathered.groupby(each["module"].astype(str)).max().astype("float64")
    return units.sort_values(ascending=False, kind="stable")


def _highest(run: Run) -> tuple[float, float | None] | None:
    """Return the most memory that a rank used, and the size of its device where it was the device's."""
    device = run.memory.dropna(subset=["peak_allocated_bytes", "device_bytes"])
    if len(device):
        used = device["peak_allocated_bytes"].to_numpy(dtype=float)
        return float(used.max()), float(device["device_bytes"].to_numpy(dtype=float)[used.argmax()])
    resident = run.memory["rss_bytes"].dropna()
    return (float(resident.max()), None) if len(resident) else None
