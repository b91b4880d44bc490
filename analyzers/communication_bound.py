"""Most of each step is communication that no computing hides, and nobody is late.

What it means
    All ranks come to their collectives at the same time, and then stand in them: the network is too slow for what is
    sent, too much is sent, or it is sent when nothing else could go on. A faster model would change little.

How it is found
    What collectives take without any waiting is at least 40 % of the step on the median rank and at least 20 ms, and
    a rank sends at least 1 MiB a step, in calls of 64 KiB or more on average: what is all latency is no such job. The
    bandwidth of the largest collectives is given as nccl-tests defines it. Where gradients are reduced in every
    micro-step of an accumulation, that is said: all but the last are superfluous.
    From profiler traces of all ranks over at least five steps: communication while no compute kernel runs, less what
    a rank's kernels of collectives take longer than the shortest of all ranks, is at least 40 % of the window and
    more than computing. In traces of some ranks only, waiting and transferring look alike, and nothing is said.

What to do
    Overlap it (gradient buckets, prefetching of the next unit), send less (16-bit gradients, ``no_sync`` during
    accumulation, hierarchical sharding), keep tensor parallelism inside a host. Compare the bandwidth with nccl-tests.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from distdiag.analyzers._wording import counted, seconds
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.performance import traced
from distdiag.analyzers.performance.efficiency import bus_bytes
from distdiag.analyzers.slowness.judged import judge
from distdiag.analyzers.slowness.sites import waiting_at
from distdiag.analyzers.slowness.telling import gained, percent
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD206"
NAME = "communication-bound"
ENOUGH_STEPS = 10
LONG_SHARE = 0.4
LEAST_NS = 20e6
LEAST_BYTES = 1 << 20
LEAST_CALL_BYTES = 64 << 10
PERSISTENT = 0.8
REDUCING = ("all_reduce", "reduce_scatter")
MOST_OPS = 3


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding if communication itself fills the steps."""
    yield from traced.exposed_transfers(run, CODE, NAME)
    judged = judge(run)
    kinds = judged.measured.groups
    for grid in judged.roles:
        if len(grid.steps) < ENOUGH_STEPS or not _sends_much(kinds, len(judged.measured.ledger)):
            continue
        spent = np.median(grid["communication_ns"] - grid["waiting_ns"], axis=0)
        if ((spent >= LONG_SHARE * grid.step_ns) & (spent >= LEAST_NS)).mean() < PERSISTENT:
            continue
        each, whole = float(np.median(spent)), float(np.median(grid.step_ns))
        place = waiting_at(run, grid.ranks, from_step=int(grid.steps[0]))
        micro_steps = _reducing_micro_steps(run)
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=f"communication takes {seconds(each)} of each {seconds(whole)} step, with nobody late: "
            f"{percent(each / whole)} of the job{f', most of it in {place[0]} ({short(place[1])})' if place else ''}\n"
            + (f"Gradients are reduced in each of {micro_steps} micro-steps: once would do. " if micro_steps else "")
            + f"Hidden behind computing, {gained(each, whole)}, at best.",
            site=place[1] if place is not None else None,
            op=place[0] if place is not None else None,
            cause="every-micro-step" if micro_steps else "bandwidth",
            lost_share=each / whole,
            evidence=(*_bandwidths(kinds), data_in_words(run)),
            action=(
                *(
                    ("put all micro-steps but the last under model.no_sync() (set_requires_gradient_sync for FSDP2)",)
                    if micro_steps
                    else ()
                ),
                "compare the bandwidth above with what nccl-tests reach between the same hosts",
                "let communication overlap: larger gradient buckets, prefetching of FSDP units; or send 16 bits",
            ),
        )


def _sends_much(kinds: pd.DataFrame, steps: int) -> bool:
    """Return whether ranks send enough in a step, and in each call, for bandwidth to matter."""
    if kinds.empty:
        return False
    sent = float((kinds["size_bytes"].astype("float64") * kinds["calls"]).sum())
    return sent >= LEAST_BYTES * steps and sent >= LEAST_CALL_BYTES * float(kinds["calls"].sum())


def _reducing_micro_steps(run: Run) -> int:
    """Return in how many backwards of a step gradients are reduced, 0 if it is once."""
    calls = run.calls[run.calls["op"].astype(str).str.startswith(REDUCING) & (run.calls["backwards"] > 0)]
    per_step = calls.groupby(["rank", "step"])["backwards"].nunique()
    return int(per_step.median()) if len(per_step) and per_step.median() >= 2 else 0


def _bandwidths(kinds: pd.DataFrame) -> tuple[str, ...]:
    """Tell the bandwidth of the collectives that take the most time."""
    longest = kinds.assign(spent=kinds["exposed_ns"] - kinds["waiting_ns"]).sort_values("spent", kind="stable")
    said = []
    for row in longest.tail(MOST_OPS).iloc[::-1].to_dict("records"):
        members, took = len(row["members"] or ()), float(row["transfer_ns"])
        moved = bus_bytes(str(row["op"]), int(row["size_bytes"]), members)
        if took > 0 and moved:
            said.append(
                f"{row['op']} of {row['size_bytes'] / (1 << 20):.1f} MiB between {counted(members, 'rank')}: "
                f"{seconds(took)}, {moved / took:.2f} GB/s bus bandwidth"
            )
    return tuple(said)
