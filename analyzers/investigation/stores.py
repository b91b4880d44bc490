"""What errors in joining tell of who came: each rank leaves its address in a store, where the others read it."""

import re
from collections.abc import Mapping

from distdiag.analyzers.investigation.rows import records, text
from distdiag.run import Run

UNANSWERED = re.compile(
    r"while trying to connect|failed to connect|connection refused|no route to host|unreachable|name resolution"
    r"|getaddrinfo|gai error|name or service",
    re.IGNORECASE,
)
"""What a rank says that found no store where it looked for one."""
CAME = re.compile(r"(\d+)/\d+ clients joined")
_REFUSED = re.compile(r"connectFullMesh failed.*?Connection refused, remote=\[([^\]]+)\]:(\d+)")
_AWAITED = re.compile(r"wait timeout after \d+ ?ms, keys?: \S*default_pg\S*?/(\d+)(?![\w/])")
_PLACE = re.compile(r"(?:trying to connect to \(?|no store answered at )([\w.:-]+?)(?:, |:)(\d+)")


def said_last(run: Run) -> Mapping[int, str]:
    """Return by rank the message of the exception that reached the top."""
    uncaught = run.faults[run.faults["where"] == "uncaught"]
    return {int(row.rank): text(row.message) or "" for row in records(uncaught)}


def awaited_in(run: Run) -> dict[int, int]:
    """Return by rank for whose address in the store it waited in vain while it joined, as its error says."""
    found = {rank: match for rank, said in said_last(run).items() if (match := _AWAITED.search(said))}
    return {rank: int(match[1]) for rank, match in sorted(found.items())}


def came_to_store(run: Run) -> int | None:
    """Return how many ranks came to the store, as the error of the rank that holds it says."""
    counts = [int(match[1]) for said in said_last(run).values() if (match := CAME.search(said))]
    return max(counts, default=None)


def unanswered_in(run: Run) -> dict[int, str]:
    """Return by rank at which address it found no store."""
    faults = run.faults
    told = faults[faults["where"].isin(("uncaught", "telling")) & faults["message"].notna()]
    found = {int(row.rank): match for row in records(told) if (match := _PLACE.search(str(row.message)))}
    return {rank: f"{match[1]}:{match[2]}" for rank, match in sorted(found.items())}


def refused_in(run: Run) -> dict[int, str]:
    """Return by rank the address that it found in the store, and at which nobody listened."""
    found = {rank: match for rank, said in said_last(run).items() if (match := _REFUSED.search(said))}
    return {rank: f"{match[1]}:{match[2]}" for rank, match in sorted(found.items())}
