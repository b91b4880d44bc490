"""Which processes still run: those of this host are looked at, others are believed for a few seconds."""

import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from distdiag.deferred import deferred
from distdiag.run.launch import Process

if TYPE_CHECKING:
    import psutil
else:
    psutil = deferred("psutil")

FRESH_NS = 10_000_000_000
"""Pulses come each second, shipped logs a second later, and clocks differ: a record so young is a sign of life."""
START_NS = 60_000_000_000
"""A process that began so long after its log did is another one with the same number."""


def alive(members: Mapping[int, Process]) -> frozenset[int]:
    """Return the ranks whose processes have not ended; the only answer here that depends on when it is asked."""
    here, now_ns = socket.gethostname(), time.time_ns()
    return frozenset(rank for rank, process in members.items() if _is_alive(process, here, now_ns))


def _is_alive(process: Process, here: str, now_ns: int) -> bool:
    header = process.header
    if header is None:
        return False
    if header.host != here:
        return now_ns - process.end_ns < FRESH_NS
    try:
        found = psutil.Process(header.pid)
        ended = found.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return not ended and found.create_time() * 1e9 < header.wall_ns + START_NS
    except psutil.Error:
        return False
