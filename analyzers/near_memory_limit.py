"""A rank is close to the end of its memory.

What it means
    The next longer batch, or the next checkpoint that is put together in memory, will not fit. On a device that is an
    out-of-memory error on one rank; on the host the kernel kills the process without a message.

How it is found
    The peak in use on a device against its size, and the memory of the control group, without the files it caches,
    against its limit: 92 % and more.

What to do
    See what would help with ``distdiag memory``: a smaller micro-batch, activation checkpointing, sharding. On the host
    fewer loader workers, less prefetching, or a higher limit.
"""

from collections.abc import Iterator, Mapping

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.memory import size
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD404"
NAME = "near-memory-limit"
NEAR = 0.92


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for devices and one for hosts that are nearly full."""
    memory = run.memory
    device = memory.dropna(subset=["peak_allocated_bytes", "device_bytes"])
    yield from _near(run, "device", _highest(device["rank"], device["peak_allocated_bytes"], device["device_bytes"]))
    host = memory.dropna(subset=["cgroup_bytes", "cgroup_limit_bytes", "cgroup_reclaimable_bytes"])
    used = host["cgroup_bytes"] - host["cgroup_reclaimable_bytes"]
    yield from _near(run, "control group", _highest(host["rank"], used, host["cgroup_limit_bytes"]))


def _highest(ranks: object, used: object, limits: object) -> Mapping[int, tuple[float, float]]:
    """Return the most that each rank used, and its limit then."""
    found: dict[int, tuple[float, float]] = {}
    for rank, use, limit in zip(ranks, used, limits, strict=True):  # type: ignore[call-overload]
        if limit and (rank not in found or use / limit > found[rank][0] / found[rank][1]):
            found[int(rank)] = float(use), float(limit)
    return found


def _near(run: Run, what: str, highest: Mapping[int, tuple[float, float]]) -> Iterator[Finding]:
    near = {rank: use / limit for rank, (use, limit) in highest.items() if use >= NEAR * limit}
    if not near:
        return
    rank = max(near, key=lambda each: (near[each], -each))
    used, limit = highest[rank]
    some = len(near) < len(highest)
    yield Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=(
            f"the {what} of {named(near)} is nearly full: {size(used)} of {size(limit)} on rank {rank}, "
            f"{100 * near[rank]:.0f} %{_others(highest, near)}"
        ),
        culprits=tuple(sorted(near)) if some else (),
        evidence=(data_in_words(run),),
        action=(
            "give these ranks less to do: a smaller micro-batch, shorter sequences, activation checkpointing"
            if what == "device"
            else "use fewer loader workers or less prefetching, or raise the limit of the control group",
        ),
    )


def _others(highest: Mapping[int, tuple[float, float]], near: Mapping[int, float]) -> str:
    others = sorted(use / limit for rank, (use, limit) in highest.items() if rank not in near)
    return f"; the others are at {100 * others[len(others) // 2]:.0f} %" if others else ""
