"""Memory that the allocator holds and does not use is in pieces too small for what is asked.

What it means
    The device has room enough, but not in one piece: tensors of changing sizes leave holes behind. The allocator then
    gives all its caches back and begins anew, which costs time, or fails although gigabytes are free.

How it is found
    An out-of-memory error tells what was asked for and how much was reserved but unallocated: more than was asked for
    means fragmentation. Before that, a rank whose allocator had to give back its caches while a tenth of the device was
    reserved and unused is reported.

What to do
    Set ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``. Pad to a few sizes instead of any, and leave
    ``torch.cuda.empty_cache()`` out of the loop.
"""

from collections.abc import Iterator

import pandas as pd

from distdiag.analyzers._wording import counted, named
from distdiag.analyzers.investigation.memory import fragmentation
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.memory import size
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD403"
NAME = "memory-fragmentation"
UNUSED_SHARE = 0.1
WARM_UP_STEPS = 2
ACTION = (
    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "pad to a few lengths instead of any, and leave torch.cuda.empty_cache() out of the loop",
)


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for what failed, else for the ranks whose allocator struggles."""
    failed = run.faults[run.faults["message"].map(lambda text: bool(text) and fragmentation(text) is not None)]
    if len(failed):
        first = failed.sort_values("time_ns").iloc[0]
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=f"memory of rank {first['rank']} was in pieces when it ran out: {fragmentation(first['message'])}",
            culprits=tuple(sorted({int(rank) for rank in failed["rank"]})),
            step=int(first["step"]),
            evidence=(data_in_words(run),),
            action=ACTION,
        )
        return
    yield from _struggling(run)


def _struggling(run: Run) -> Iterator[Finding]:
    memory = run.memory.dropna(subset=["alloc_retries", "reserved_bytes", "allocated_bytes", "device_bytes"])
    memory = memory[memory["step"] >= WARM_UP_STEPS].sort_values("time_ns")
    found: dict[int, tuple[int, pd.Series[float]]] = {}
    for rank, rows in memory.groupby("rank"):
        retries = rows["alloc_retries"].astype("int64")
        unused = (rows["reserved_bytes"] - rows["allocated_bytes"]).astype("float64")
        rising = rows[(retries.diff() > 0) & (unused >= UNUSED_SHARE * rows["device_bytes"].astype("float64"))]
        if len(rising):
            worst = rising.iloc[int(unused[rising.index].to_numpy().argmax())]
            found[int(str(rank))] = int(retries.iloc[-1] - retries.iloc[0]), worst
    if not found:
        return
    rank = max(found, key=lambda each: found[each][0])
    count, worst = found[rank]
    unused_bytes = float(worst["reserved_bytes"] - worst["allocated_bytes"])
    yield Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=(
            f"the allocator of {named(found)} had to give back its caches while memory was free: in step "
            f"{int(worst['step'])} {size(unused_bytes)} of {size(float(worst['device_bytes']))} were reserved and "
            f"unused on rank {rank}\n"
            f"It did so at least {counted(count, 'time')} since step {WARM_UP_STEPS}; each time the device has to wait."
        ),
        culprits=tuple(sorted(found)) if len(found) < len(run.ranks) else (),
        step=int(worst["step"]),
        evidence=(data_in_words(run),),
        action=ACTION,
    )
