"""One group's collectives are slower than the same ones of its peers.

What it means
    Groups of equal shape move equal bytes; one of them takes much longer although nobody comes late to it. A link
    between its hosts is slow: a flapping cable, a bad adapter, a path through a slower switch. All ranks that depend
    on that group wait for it.

How it is found
    For each operation, size and number of members, the median transfer time of each group (the shortest duration of a
    collective, which holds no waiting) is compared with that of the other groups: at least twice as long and 2 ms
    longer, for at least ten collectives of 256 KiB or more, and with at least two groups to compare with.

What to do
    Test the pair of hosts by itself (nccl-tests, ``ib_write_bw``), look at the counters of its links, and move the job
    off it. Groups of tensor parallelism should not cross hosts at all.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from distdiag.analyzers._wording import counted, named, seconds
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.performance.efficiency import bus_bytes
from distdiag.analyzers.slowness.judged import judge
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD208"
NAME = "slow-link"
SLOWER_BY = 2.0
LEAST_NS = 2e6
LEAST_BYTES = 256 << 10
"""Smaller ones are all latency, which differs for many reasons."""
ENOUGH_CALLS = 10
ENOUGH_PEERS = 2


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding per group that is slower than its peers."""
    kinds = judge(run).measured.groups
    if kinds.empty or not judge(run).roles:
        return
    hosts = {int(rank): str(host) for rank, host in zip(run.headers["rank"], run.headers["host"], strict=True)}
    large = kinds[(kinds["size_bytes"].astype("int64") >= LEAST_BYTES) & kinds["members"].notna()]
    large = large.assign(size=large["members"].map(len))
    for _, rows in large.groupby(["op", "size_bytes", "size"], observed=True, sort=True):
        of_group = rows.groupby(rows["group_key"].astype(str))
        often = of_group["calls"].sum() >= ENOUGH_CALLS * int(rows["size"].iloc[0])
        transfer_ns = of_group["transfer_ns"].median()[often].astype("float64")
        for key, usual_ns in _slow(transfer_ns):
            group = rows[rows["group_key"] == key].to_dict("records")[0]
            yield _finding(run, group, float(transfer_ns[key]), usual_ns, len(transfer_ns) - 1, hosts)


def _slow(transfer_ns: "pd.Series[float]") -> Iterator[tuple[str, float]]:
    """Yield the groups that are slower than the others, with what is usual of those."""
    if len(transfer_ns) < ENOUGH_PEERS + 1:
        return
    for key in sorted(transfer_ns.index.astype(str)):
        usual = float(np.median(transfer_ns.drop(key)))
        if transfer_ns[key] >= max(SLOWER_BY * usual, usual + LEAST_NS):
            yield key, usual


def _finding(
    run: Run, group: Mapping[Any, Any], took_ns: float, usual_ns: float, peers: int, hosts: dict[int, str]
) -> Finding:
    members = tuple(int(rank) for rank in group["members"])
    op, size = str(group["op"]), int(group["size_bytes"])
    between = sorted({hosts.get(rank, "?") for rank in members})
    moved = bus_bytes(op, size, len(members))
    where = f" (hosts {', '.join(between)})" if len(between) > 1 else ""
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=f"{op} between {named(members)}{where} takes {seconds(took_ns)}, the same between other ranks "
        f"{seconds(usual_ns)} ({took_ns / usual_ns:.1f}x)\nNobody comes late to it: the link is slow. At the others' "
        f"pace {seconds(took_ns - usual_ns)} would be gained each time.",
        culprits=members,
        group=str(group["group"]),
        op=op,
        cause="link",
        evidence=(
            f"{size / (1 << 20):.1f} MiB each: {_pace(moved / took_ns)} bus bandwidth against "
            f"{_pace(moved / usual_ns)} of {counted(peers, 'other group')}",
            data_in_words(run),
        ),
        action=(
            f"test the link between {' and '.join(between)} by itself: nccl-tests, ib_write_bw, its error counters"
            if len(between) > 1
            else f"test the links inside {between[0]}: nccl-tests, nvidia-smi topo -m, nvidia-smi nvlink -e",
            "place the group on other hosts; keep tensor-parallel groups inside one host",
        ),
    )


def _pace(bytes_per_ns: float) -> str:
    return f"{bytes_per_ns:.2f} GB/s" if bytes_per_ns >= 1 else f"{1000 * bytes_per_ns:.0f} MB/s"
