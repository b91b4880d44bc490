"""The operations of a job as dense arrays: one node per kind, number and stage, with its times on every worker."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Numbers = npt.NDArray[np.float64]

FORWARD, BACKWARD = "forward-compute", "backward-compute"
FORWARD_SEND, FORWARD_RECV = "forward-send", "forward-recv"
BACKWARD_SEND, BACKWARD_RECV = "backward-send", "backward-recv"
GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
SEPARATE, CLIP = "separate-grads-all-reduce", "optimizer-clip-main-grad"
GARBAGE, OPTIMIZER = "gc", "optimizer"
KINDS = (
    FORWARD,
    BACKWARD,
    FORWARD_SEND,
    FORWARD_RECV,
    BACKWARD_SEND,
    BACKWARD_RECV,
    GATHER,
    SCATTER,
    LAYERNORM,
    EMBEDDING,
    SEPARATE,
    CLIP,
    GARBAGE,
    OPTIMIZER,
)
"""What is understood; other kinds of operations are left out, and named."""
NANO = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """N nodes on D data-parallel ranks in K steps; times are seconds from the first operation of the step."""

    nodes: pd.DataFrame
    """A row per node: ``op``, ``seq``, ``stage`` (its position), and as data-parallel rank 0 had them in the first
    step ``start``, ``chunk``, ``microbatch``, ``global_chunk``."""
    start: Numbers
    """[N, D, K]"""
    end: Numbers
    """[N, D, K]"""
    ranks: npt.NDArray[np.int64]
    """[stages, D]: one global rank per worker."""
    stages: tuple[int, ...]
    dp: tuple[int, ...]
    steps: tuple[int, ...]
    not_understood: tuple[str, ...]
    """Kinds of operations that were left out."""

    @property
    def measured_seconds(self) -> Numbers:
        """Return how long each step took, [K]."""
        seconds: Numbers = self.end.max(axis=(0, 1)) - self.start.min(axis=(0, 1))
        return seconds

    @property
    def microbatches(self) -> int:
        """Return how many forward passes the first stage makes in a step."""
        return int(((self.nodes["op"] == FORWARD) & (self.nodes["stage"] == 0)).sum())


def job_of(operations: pd.DataFrame) -> Job | None:
    """Return the operations of a run, every step of which holds the same ones on all data-parallel ranks.

    None where no kind of operation is understood.
    """
    known = operations["op"].isin(KINDS)
    other = tuple(sorted(map(str, operations.loc[~known, "op"].unique())))
    rows = operations[known] if other else operations
    if rows.empty:
        return None
    stages, stage = np.unique(rows["stage"].to_numpy(), return_inverse=True)
    dp, worker = np.unique(rows["dp"].to_numpy(), return_inverse=True)
    steps, step = np.unique(rows["step"].to_numpy(), return_inverse=True)
    keys = pd.DataFrame({"op": rows["op"].astype("category").cat.codes, "seq": rows["seq"], "stage": stage})
    node = keys.groupby(["op", "seq", "stage"]).ngroup().to_numpy()
    shape = (int(node.max()) + 1, len(dp), len(steps))
    start, end = np.empty(shape), np.empty(shape)
    begun = rows["start_ns"].to_numpy()
    start[node, worker, step] = begun * NANO
    end[node, worker, step] = (begun + rows["duration_ns"].to_numpy()) * NANO
    ranks = np.zeros((len(stages), len(dp)), dtype=np.int64)
    ranks[stage, worker] = rows["rank"].to_numpy()
    first = (worker == 0) & (step == 0)
    return Job(
        nodes=_nodes(rows[first], node[first], stage[first]),
        start=start,
        end=end,
        ranks=ranks,
        stages=tuple(stages.tolist()),
        dp=tuple(dp.tolist()),
        steps=tuple(steps.tolist()),
        not_understood=other,
    )


def _nodes(rows: pd.DataFrame, node: npt.NDArray[Any], stage: npt.NDArray[Any]) -> pd.DataFrame:
    named = pd.DataFrame(
        {
            "op": rows["op"].astype(str).to_numpy(),
            "seq": rows["seq"].to_numpy(),
            "stage": stage,
            "start": rows["start_ns"].to_numpy(),
            "chunk": rows["chunk"].to_numpy(),
            "microbatch": rows["microbatch"].to_numpy(),
            "global_chunk": rows["global_chunk"].to_numpy(),
        },
        index=node,
    )
    return named.sort_index()
