"""Who this process is: its rank, who says so, who started it, and the header of its log."""

import os
import socket
import sys
import time
from collections.abc import Sequence

from distdiag import ancestry, events
from distdiag.journal import Journal
from distdiag.settings import (
    LOCAL_RANK_VARIABLES,
    RANK_VARIABLE,
    RANK_VARIABLES,
    WORLD_SIZE_VARIABLES,
    Settings,
    logged_settings,
    run_name,
    whole_number,
)

DEVICE_NODES = ("/dev/nvidiactl", "/dev/kfd")


class Identity:
    """What is known of this process in its job; a default group may correct what a launcher said."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.started_by = ancestry.started_by()
        """Number of the process that started this one by multiprocessing."""
        self.rank, self.rank_from = self._told(RANK_VARIABLES)
        """As the launcher says, until the default group does, and the variable that says it."""
        self.world_size, _ = self._told(WORLD_SIZE_VARIABLES)
        self.joined = False
        """Whether the default group is known."""
        self._wall = (time.time_ns(), time.monotonic_ns())

    @property
    def is_rank(self) -> bool:
        """Return whether this process is a rank; one whose number only a scheduler told may be about to start ranks."""
        return self.joined or self.rank_from == RANK_VARIABLE

    def learn(self, rank: int, world_size: int, *, joined: bool) -> bool:
        """Take the rank with which this process joins, or has ``joined``, its first default group; say if it is news.

        A launcher of ranks told it already. A scheduler tells which of its tasks this process is: where that starts
        ranks itself, these are others.
        """
        first, self.joined = not self.joined, self.joined or joined
        news = first and self.rank != rank and self.rank_from != RANK_VARIABLE
        if news:
            self.rank, self.rank_from, self.world_size = rank, None, world_size
        return news

    def header(self, journal: Journal, settings: Settings, segment: int) -> bytes:
        """Return the first record of a segment of this process's log."""
        wall_ns, monotonic_ns = self._wall
        return events.encode(
            events.Header(
                schema=events.SCHEMA,
                run=run_name(),
                attempt=journal.attempt,
                rank=self.rank,
                rank_from=self.rank_from,
                local_rank=self._told(LOCAL_RANK_VARIABLES)[0],
                world_size=self.world_size,
                host=socket.gethostname(),
                pid=self.pid,
                started_by=self.started_by,
                segment=segment,
                device=_device(),
                script=sys.argv[0] if sys.argv else None,
                versions=_versions(),
                wall_ns=wall_ns,
                monotonic_ns=monotonic_ns,
                stall_after_seconds=settings.stall_after_seconds,
                max_bytes=settings.max_bytes,
                shipped_from=str(journal.shipped_from) if journal.shipped_from else None,
                settings=logged_settings(),
            )
        )

    def _told(self, variables: Sequence[str]) -> tuple[int | None, str | None]:
        """Return the first number that one of the variables holds, and which it is.

        A scheduler's are about its task; of a process that this one started they say nothing.
        """
        for name in variables if self.started_by is None else variables[:1]:
            number = whole_number((name,))
            if number is not None:
                return number, name
        return None, None


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(getattr(torch, "__version__", "unknown"))
    return versions


def _device() -> str:
    # Asking torch whether CUDA is available initialises the driver, and a forked loader worker would pay for it.
    return "cuda" if any(os.path.exists(node) for node in DEVICE_NODES) else "cpu"
