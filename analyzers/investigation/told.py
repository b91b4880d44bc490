"""What backends say of a disagreement in so many words, where the calls themselves are not recorded."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from distdiag.analyzers.investigation.paths import location
from distdiag.analyzers.investigation.rows import oldest
from distdiag.run import Run

SIZES = re.compile(r"(?P<received>\d+) vs (?P<expected>\d+)\. Received data size doesn't match expected size")
"""What gloo says when a peer sends more than fits; it aborts the process that has the smaller buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldSizes:
    """A rank was sent more than it had room for."""

    rank: int
    time_ns: int
    received_bytes: int
    expected_bytes: int
    sites: dict[int, str]
    """Where the others noticed: they may have been done with that operation."""


def told_sizes(run: Run) -> Iterator[ToldSizes]:
    """Yield the first message about sizes that differ."""
    said = run.faults[run.faults["message"].map(lambda text: bool(SIZES.search(str(text))))]
    if said.empty:
        return
    first = oldest(said)
    found = SIZES.search(str(first["message"]))
    failed = run.calls[run.calls["failed"]]
    paths = {int(r): run.paths.get(int(p), ()) for r, p in zip(failed["rank"], failed["path"], strict=True)}
    sites = {rank: location(path[-1]) for rank, path in paths.items() if path}
    if found is not None:
        yield ToldSizes(
            rank=int(first["rank"]),
            time_ns=int(first["time_ns"]),
            received_bytes=int(found["received"]),
            expected_bytes=int(found["expected"]),
            sites=sites,
        )
