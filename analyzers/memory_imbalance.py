"""One rank's device needs far more memory than those of its peers.

What it means
    The fullest device decides which batch fits, so the memory of all others is bought and not used. Ranks that do the
    same work hold the same tensors: what one holds beyond them is its alone. Often rank 0 keeps something for all
    (metrics, an averaged copy of the model, an evaluation), or one rank got longer samples.

How it is found
    The peak in use on each device, after two steps, among ranks of one pipeline stage. A rank is reported if its peak
    is 1.25 times that of the median peer and more than 1 GiB above it, while all peers are within a tenth of each
    other and there are at least three of them. A warning if its device is 80 % full.

What to do
    Ask that rank for ``torch.cuda.memory._snapshot()`` and compare what is alive with a peer's. Let all ranks share
    what one does for all; balance the lengths of samples.
"""

from collections.abc import Iterator

import pandas as pd

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.slowness.stages import roles_of
from distdiag.analyzers.training.memory import GIB, size
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD407"
NAME = "memory-imbalance"
FAR_ABOVE = 1.25
"""Allocators round and caches differ by some percent between ranks that do the same."""
ALIKE = 1.1
AT_LEAST_BYTES = GIB
FEWEST_PEERS = 3
WARM_UP_STEPS = 2
FULL = 0.8
"""Of a device; with more room left nobody has to act."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the ranks of a role that need far more than the others."""
    memory = run.memory.dropna(subset=["peak_allocated_bytes", "device_bytes"])
    memory = memory[memory["step"] >= WARM_UP_STEPS]
    peaks = memory.groupby("rank")["peak_allocated_bytes"].max().astype("float64")
    if not _above(peaks):  # roles cost a look at all messages
        return
    for role in roles_of(run):
        known = peaks[peaks.index.isin(role)]
        far = _above(known)
        peers = known[~known.index.isin(far)]
        if far and len(peers) >= FEWEST_PEERS and float(peers.max()) <= ALIKE * float(peers.min()):
            yield _finding(run, memory, far, peers)


def _above(peaks: "pd.Series[float]") -> list[int]:
    """Return the ranks far above the median."""
    if peaks.empty:
        return []
    typical = float(peaks.median())
    far = peaks[(peaks >= FAR_ABOVE * typical) & (peaks - typical >= AT_LEAST_BYTES)]
    return [int(str(rank)) for rank in far.index]


def _finding(run: Run, memory: pd.DataFrame, far: list[int], peers: "pd.Series[float]") -> Finding:
    typical = float(peers.median())
    own = memory[memory["rank"].isin(far)].sort_values(["peak_allocated_bytes", "time_ns"], ascending=[False, True])
    worst = own.iloc[0]
    rank, peak, device = int(worst["rank"]), float(worst["peak_allocated_bytes"]), float(worst["device_bytes"])
    risen = own[(own["rank"] == rank) & (own["peak_allocated_bytes"].astype("float64") >= FAR_ABOVE * typical)]
    step = int(risen["step"].min())
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING if peak >= FULL * device else Severity.INFO,
        summary=(
            f"rank {rank} needs {peak / typical:.1f}x the device memory of its peers: {size(peak)} at its peak, "
            f"{size(typical)} on the median of {len(peers)} others\n"
            f"It was above them by step {step}; its device has {size(device)}, "
            f"{100 * peak / device:.0f} % of which it needs."
        ),
        culprits=tuple(far),
        step=step,
        evidence=(
            f"peaks of its peers: {size(float(peers.min()))} to {size(float(peers.max()))}"
            + (f"; above them are {named(far)}" if len(far) > 1 else ""),
            data_in_words(run),
        ),
        action=(
            f"compare what is alive on rank {rank} and on a peer: torch.cuda.memory._snapshot() in the same step",
            f"look for what rank {rank} alone does or keeps: evaluation, metrics, an averaged model, longer samples",
        ),
    )
