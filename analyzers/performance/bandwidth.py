"""Bus bandwidth of collectives, as nccl-tests define it: what the slowest link carries, whatever the number of ranks.

``busbw = S / t * f(n)`` with S the bytes of the full array, t the transfer time without any waiting, and n the members.
All-reduce: ``f = 2 (n - 1) / n``; reduce-scatter, all-gather, all-to-all, gather and scatter: ``(n - 1) / n``;
broadcast, reduce, send and receive: 1. (nccl-tests, doc/PERFORMANCE.md.)
"""

TWICE = ("all_reduce",)
ONCE = ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")
OF_ONE_SHARD = ("all_gather", "gather")
"""A record holds the bytes of the rank's input, which is one of n shards of the full array here."""


def bus_bytes(op: str, size_bytes: int, members: int) -> float:
    """Return the bytes that a collective moves over its slowest link, from the bytes of a rank's input."""
    if members < 2:
        return 0.0
    full = size_bytes * members if op.startswith(OF_ONE_SHARD) else size_bytes
    if op.startswith(TWICE):
        return full * 2 * (members - 1) / members
    return full * (members - 1) / members if op.startswith(ONCE) else float(full)
