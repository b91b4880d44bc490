"""Memory as the reason behind something else: an out-of-memory error that was caught, or a kill at the limit."""

import re
from collections.abc import Sequence
from typing import Any

from distdiag import events
from distdiag.analyzers.investigation.deaths import OUT_OF_MEMORY
from distdiag.analyzers.investigation.divergence import Divergence
from distdiag.analyzers.investigation.paths import location, short
from distdiag.analyzers.investigation.rows import oldest
from distdiag.run import Run

GIB = 1 << 30
MOST_ITEMS = 3
MOST_RANKS_HELD = 2
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": GIB}
_MEMORY_ERROR = re.compile(r"OutOfMemoryError|MemoryError|CUDA out of memory")
_ASKED = re.compile(r"Tried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)")
_UNUSED = re.compile(r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB) is reserved by PyTorch but unallocated")
NEAR_LIMIT = 0.9
"""The kernel kills at the limit; samples a second apart see the last of it only if it grew slowly."""


def ran_out_of_memory(run: Run, divergence: Divergence) -> dict[str, Any] | None:
    """Return what makes a divergence an out-of-memory: its odd ranks caught that error just before they left."""
    since_ns, until_ns = divergence.interval_ns
    faults = run.faults[(run.faults["fault"] == OUT_OF_MEMORY) & run.faults["time_ns"].between(since_ns, until_ns)]
    ranks = {int(rank) for rank in faults["rank"]}
    suspects = set(divergence.odd)
    if not divergence.decided and len(ranks) == 1:
        suspects |= ranks  # at a tie the error tells which side left the other
    if not ranks or ranks & set(divergence.others) - suspects or not ranks <= suspects:
        return None
    first = oldest(faults)
    frames = tuple(first["frames"])
    site = location(frames[-1]) if frames else None
    return {
        "name": OUT_OF_MEMORY,
        "cause": OUT_OF_MEMORY,
        "time_ns": int(first["time_ns"]),
        "culprits": tuple(sorted(ranks)),
        "step": int(first["step"]),
        "site": site,
        "before": "",
        "evidence": (f"rank {int(first['rank'])} caught {first['type']}: {first['message']}",),
    }


def is_memory_error(text: str) -> bool:
    """Return whether an exception says that memory ran out."""
    return bool(_MEMORY_ERROR.search(text))


def fragmentation(message: str) -> str | None:
    """Return that what PyTorch holds and does not use would have been enough, if its allocator's message says so."""
    asked, unused = _ASKED.search(message), _UNUSED.search(message)
    if asked is None or unused is None or _bytes(unused) < _bytes(asked):
        return None
    return f"{unused[1]} {unused[2]} are reserved but unallocated, {asked[1]} {asked[2]} were asked for"


def _bytes(found: re.Match[str]) -> float:
    return float(found[1]) * _UNITS[found[2]]


def held_at(run: Run, ranks: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what held the device's memory of some ranks when it ran out, and where to read more of it."""
    memory = run.memory[run.memory["rank"].isin(ranks)]
    told = memory[memory["largest"].map(len) > 0].sort_values("time_ns").drop_duplicates("rank")
    held, snapshots = [], []
    for row in told.head(MOST_RANKS_HELD).to_dict("records"):
        items = ", ".join(_item(item) for item in row["largest"][:MOST_ITEMS])
        held.append(f"largest on the device of rank {row['rank']}: {items}")
        if row["snapshot"]:
            snapshots.append(f"load {row['snapshot']}, beside the log of rank {row['rank']}, into torch's memory_viz")
    return tuple(held), tuple(snapshots)


def _item(item: events.Allocation) -> str:
    where = f"at {short(item.frames[-1])}" if item.frames else "of one size"
    return f"{item.size_bytes / GIB:.2f} GiB in {item.blocks} block{'' if item.blocks == 1 else 's'} {where}"


def memory_before(run: Run, rank: int, time_ns: int) -> str | None:
    """Return how the memory of a rank went before a moment, where samples tell."""
    samples = run.memory[(run.memory["rank"] == rank) & (run.memory["time_ns"] <= time_ns)].dropna(subset=["rss_bytes"])
    if len(samples) < 2:
        return None
    ordered = samples.sort_values("time_ns")
    first, last = int(ordered["rss_bytes"].iloc[0]), int(ordered["rss_bytes"].iloc[-1])
    words = f"resident memory of rank {rank} went from {first / GIB:.2f} to {last / GIB:.2f} GiB"
    limits = ordered["cgroup_limit_bytes"].dropna()
    used = ordered["cgroup_bytes"].dropna()
    if len(limits) and len(used) and int(limits.iloc[-1]):
        share = int(used.iloc[-1]) / int(limits.iloc[-1])
        words += f"; its control group was at {share:.0%} of its limit"
        if share >= NEAR_LIMIT:
            words += ", where the kernel kills"
    return words
