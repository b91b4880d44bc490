"""The steps that were recorded as a job to simulate: what each data-parallel rank did by itself, then one meeting.

Within a step only its parts are known, not when each operation of a microbatch ran; so all ranks are taken to meet
once, at the end. Where ranks hand work to one another during a step (pipelines) or are late by turns, that misses the
time that the steps took, and nothing is simulated.
"""

import numpy as np
import pandas as pd

from distdiag.analyzers.performance import Measured
from distdiag.analyzers.performance.dependencies import Graph, Vertex
from distdiag.analyzers.performance.job import BACKWARD, FORWARD, NANO, OPTIMIZER, Job, Numbers
from distdiag.analyzers.performance.scenarios import measured_seconds
from distdiag.analyzers.performance.what_if import WhatIf, simulations_of

COMMUNICATION = "communication"
OWN: dict[str, str] = {
    "data": "data",
    "forward": FORWARD,
    "backward": BACKWARD,
    "optimizer": OPTIMIZER,
    "checkpoint": "checkpoint",
    "other": "other",
}
"""Parts of a step and the kinds of operations they are, in their order."""
ENOUGH_STEPS = 8
FARTHEST = 0.1
"""What the simulated steps may differ from the measured ones, as a share of these."""


def recorded_what_if(measured: Measured) -> WhatIf | str:
    """Return the simulations of recorded steps, or why these logs do not allow them."""
    for reason in ("shares", "steps"):
        if reason in measured.unknown:
            return measured.unknown[reason]
    ledger = measured.ledger
    ranks = sorted(set(ledger["rank"].tolist()))
    if len(ranks) < 2:
        return "one rank waits for nobody"
    common = ledger.groupby("step")["rank"].nunique()
    steps = common.index[common == len(ranks)]
    if len(steps) < ENOUGH_STEPS:
        return f"{len(steps)} steps that all ranks recorded are too few"
    of, work = _job(ledger[ledger["step"].isin(steps)].sort_values(["rank", "step"]), ranks, steps.tolist())
    graph = _graph(len(OWN))
    took, simulated = float(of.measured_seconds.mean()), float(measured_seconds(graph, work).mean())
    if abs(simulated - took) > FARTHEST * took:
        return (
            f"steps that took {took:.3g} s would take {simulated:.3g} s if the ranks met once in each: they wait for "
            "one another during the step"
        )
    # The pace of the typical rank, as the findings compare ranks: with few ranks a mean holds much of the slow one.
    return simulations_of(of, graph, work, np.median(work, axis=(1, 2)))


def _job(ledger: pd.DataFrame, ranks: list[int], steps: list[int]) -> tuple[Job, Numbers]:
    """Return the job and its work, [parts, ranks, steps] seconds; communication is the last part."""
    shape = (len(ranks), len(steps))
    own = [ledger[f"{part}_ns"].to_numpy(dtype=float).reshape(shape) for part in OWN]
    transfer = (ledger["communication_ns"] - ledger["waiting_ns"]).to_numpy(dtype=float).reshape(shape)
    work: Numbers = np.stack([*own, transfer]) * NANO
    took = ledger["step_ns"].to_numpy(dtype=float).reshape(shape) * NANO
    nodes = pd.DataFrame(
        {"op": [*OWN.values(), COMMUNICATION], "seq": 0, "stage": 0, "start": 0, "chunk": -1, "microbatch": -1}
    )
    job = Job(
        nodes=nodes.assign(global_chunk=-1),
        start=np.zeros_like(work),
        end=np.broadcast_to(took, work.shape),
        ranks=np.array([ranks], dtype=np.int64),
        stages=(0,),
        dp=tuple(ranks),
        steps=tuple(steps),
        not_understood=(),
    )
    return job, work


def _graph(parts: int) -> Graph:
    """Return a chain of parts, and the meeting of all data-parallel ranks after it."""
    chain = [Vertex(members=(node,), meets=False, over_dp=False) for node in range(parts)]
    meeting = Vertex(members=(parts,), meets=True, over_dp=True)
    return Graph(
        vertices=(*chain, meeting),
        before={node: (node - 1,) if node else () for node in range(parts + 1)},
        last=(parts,),
    )
