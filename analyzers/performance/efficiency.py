"""How much of what the devices could do goes into the model: MFU, arithmetic intensity, recomputation.

``MFU`` is the floating-point operations that the model needs, over what the device's peak allows in the time that the
steps took (Chowdhery et al. 2022, PaLM, section 4.1); what is computed again for the backward does not count. Only
the user knows them: ``distdiag.step(flops=...)`` of this rank's step, forward and backward, and ``peak_flops=...`` of
its device per second.

A step is bound by communication where its operations per byte sent are fewer than the machine's balance, the peak
over the bandwidth (the roofline of Williams et al. 2009, with the network in the place of the memory).
"""

from typing import Any

import numpy as np
import pandas as pd

from distdiag.analyzers.performance import Measured
from distdiag.run import Run

TWICE = ("all_reduce",)
ONCE = ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")
"""How often the other members' shares pass the slowest link; of all other operations the whole array does once."""
OF_ONE_SHARD = ("all_gather", "gather")
"""A record holds the bytes of the rank's input, which is one of n shards of the full array here."""
FLOPS, PEAK = "flops", "peak_flops"
NOT_TOLD = "the work of a step was not recorded: say distdiag.step(flops=..., peak_flops=...)"
NO_PEAK = "the peak of the device was not recorded: say distdiag.step(peak_flops=...) once"
TOO_MUCH = "flops and peak_flops that were said make more than the whole device"
ON_DEVICES = "the host runs ahead of the device the ranks compute on: its times do not tell what is computed again"
SECOND_NS = 1e9
COMPUTING, COMMUNICATION = "computing", "communication"


def bus_bytes(op: str, size_bytes: int, members: int) -> float:
    """Return the bytes that a collective moves over its slowest link, from the bytes of a rank's input.

    By the time of the transfer alone they give the bus bandwidth, as nccl-tests define it: what the slowest link
    carries, whatever the number of ranks. ``busbw = S / t * f(n)`` with S the bytes of the full array, t the transfer
    time without any waiting, and n the members. All-reduce: ``f = 2 (n - 1) / n``; reduce-scatter, all-gather,
    all-to-all, gather and scatter: ``(n - 1) / n``; broadcast, reduce, send and receive: 1. (nccl-tests,
    doc/PERFORMANCE.md.)
    """
    if members < 2:
        return 0.0
    full = size_bytes * members if op.startswith(OF_ONE_SHARD) else size_bytes
    if op.startswith(TWICE):
        return full * 2 * (members - 1) / members
    return full * (members - 1) / members if op.startswith(ONCE) else float(full)


def efficiency_of(run: Run, measured: Measured) -> dict[str, Any]:
    """Return what of the devices' peak is used, what would bound a perfect step, and the share of recomputation.

    ``mfu`` and ``recompute_share`` (of the backward) are shares; ``flops_per_second`` is of all ranks together that
    told; ``flops_per_byte`` of what a rank sends over its slowest link, ``balance`` the peak over the highest
    bandwidth that its collectives reached. ``unknown`` says why something is None.
    """
    unknown: dict[str, str] = {}
    steps = _steps(run, measured)
    pace = _pace(steps, unknown)
    bound = _bound(measured, pace, unknown)
    told = {"flops_per_second": None, "mfu": None, "recompute_share": _recomputed(run, steps, unknown)}
    if pace is not None:
        told |= {"flops_per_second": float(f"{pace['per_second']:.6g}"), "mfu": pace["mfu"]}
    return {**told, **bound, "unknown": unknown}


def _steps(run: Run, measured: Measured) -> pd.DataFrame:
    """Return the steps of the ledger with what was told of them."""
    if measured.ledger.empty:
        return pd.DataFrame()
    told = run.steps[["rank", "step", "backward_ns", "recompute_ns"]].rename(columns={"backward_ns": "passed"})
    numbers = {name: _said(run.steps["facts"], name) for name in (FLOPS, PEAK)}
    told = told.assign(**numbers)
    # The peak does not change: saying it once, in the warm-up even, is enough.
    told = told.assign(**{PEAK: told.groupby("rank")[PEAK].transform("max")})
    return measured.ledger[["rank", "step", "step_ns"]].merge(told, on=["rank", "step"])


def _said(facts: "pd.Series[Any]", name: str) -> Any:
    return pd.to_numeric(pd.Series([each.get(name) for each in facts], index=facts.index), errors="coerce")


def _pace(steps: pd.DataFrame, unknown: dict[str, str]) -> dict[str, Any] | None:
    known = steps[steps[FLOPS] > 0] if len(steps) else steps
    if known.empty:
        unknown["mfu"] = NOT_TOLD
        return None
    sums = known.groupby("rank")[[FLOPS, "step_ns"]].sum()
    pace = sums[FLOPS] / (sums["step_ns"] / SECOND_NS)
    peak = known.groupby("rank")[PEAK].max()
    mfu = None
    if peak.isna().any() or (peak <= 0).any():
        unknown["mfu"] = NO_PEAK
    elif pace.sum() > peak.sum():
        unknown["mfu"] = TOO_MUCH
    else:
        mfu = round(float(pace.sum() / peak.sum()), 4)
    return {
        "per_second": float(pace.sum()),
        "mfu": mfu,
        "per_step": float(known[FLOPS].median()),
        "peak": float(peak.median()) if mfu is not None else None,
    }


def _bound(measured: Measured, pace: dict[str, Any] | None, unknown: dict[str, str]) -> dict[str, Any]:
    told: dict[str, Any] = dict.fromkeys(("flops_per_byte", "balance", "bound_by"))
    if "shares" in measured.unknown:
        unknown["bound_by"] = measured.unknown["shares"]
    elif pace is None or measured.groups.empty:
        unknown["bound_by"] = NOT_TOLD if pace is None else "the ranks send one another nothing"
    else:
        sent, bandwidth = _sent(measured.groups)
        sent /= len(measured.ledger)
        if not sent or not bandwidth:
            unknown["bound_by"] = "the ranks send one another nothing"
            return told
        told["flops_per_byte"] = float(f"{pace['per_step'] / sent:.6g}")
        if pace["peak"] is None:
            unknown["bound_by"] = unknown["mfu"]
        else:
            told["balance"] = float(f"{pace['peak'] / bandwidth:.6g}")
            told["bound_by"] = COMMUNICATION if told["flops_per_byte"] < told["balance"] else COMPUTING
    return told


def _sent(kinds: pd.DataFrame) -> tuple[float, float]:
    """Return the bytes that all ranks' calls moved over the slowest link, and the highest bandwidth in bytes a
    second that calls of one kind reached."""
    sizes = zip(kinds["op"].astype(str), kinds["size_bytes"], kinds["members"], strict=True)
    moved = np.array([bus_bytes(op, int(size), len(members or ())) for op, size, members in sizes])
    took = kinds["transfer_ns"].to_numpy(dtype=float)
    pace = np.divide(moved * SECOND_NS, took, out=np.zeros(len(moved)), where=took > 0)
    return float((moved * kinds["calls"].to_numpy(dtype=float)).sum()), float(pace.max(initial=0.0))


def _recomputed(run: Run, steps: pd.DataFrame, unknown: dict[str, str]) -> float | None:
    """Return the share of the backwards in which activations were computed again, None where none were seen."""
    if not (run.calls["device"] == "cpu").all():
        unknown["recompute_share"] = ON_DEVICES
        return None
    known = steps[steps["passed"] > 0] if len(steps) else steps
    if known.empty:
        unknown["recompute_share"] = "no backward was recorded"
        return None
    if known["recompute_ns"].isna().all():
        unknown["recompute_share"] = "no activation was seen to be computed again"
        return None
    return round(float(known["recompute_ns"].fillna(0).sum() / known["passed"].sum()), 4)
