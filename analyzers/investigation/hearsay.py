"""What texts tell of a failure where they name no cause: consequences, warnings, threads that were held up."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation.advice import advice_on
from distdiag.analyzers.investigation.paths import location, short
from distdiag.analyzers.investigation.rows import oldest
from distdiag.events import CONSEQUENCE, STUCK_WATCHDOG, TELLING
from distdiag.run import Run

LONGEST = 200
_SOURCE = re.compile(r"\[\S+\.(?:cc|cpp|h|hpp):\d+\] ")
"""Where in the library's own code an error came up; it says nothing to whoever reads of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearsay:
    """The most that is told of what went wrong."""

    reason: str
    evidence: tuple[str, ...]
    action: tuple[str, ...]


def hearsay(run: Run) -> Hearsay | None:
    """Return what is told of a failure, None where nothing is."""
    warnings = run.faults[run.faults["where"] == TELLING]
    evidence = tuple(dict.fromkeys(str(text) for text in warnings.sort_values("time_ns")["message"]))
    found = next((each for each in _told(run, warnings) if each is not None), None)
    if found is None:
        return None
    return Hearsay(reason=found, evidence=evidence, action=advice_on(found, *evidence))


def _told(run: Run, warnings: pd.DataFrame) -> Iterator[str | None]:
    yield _warned(warnings)
    yield _suffered(run.faults[run.faults["where"] == CONSEQUENCE])
    yield _held_up(run.faults[run.faults["type"] == STUCK_WATCHDOG])
    yield _behind(run)


def _warned(warnings: pd.DataFrame) -> str | None:
    return f"{oldest(warnings)['message']}" if len(warnings) else None


def _suffered(consequences: pd.DataFrame) -> str | None:
    if consequences.empty:
        return None
    first = oldest(consequences)
    frames = tuple(first["frames"])
    site = f" ({short(location(frames[-1]))})" if frames else ""
    said = _SOURCE.sub("", f"{first['type']}: {first['message']}".splitlines()[0])[:LONGEST].rstrip(": ")
    return (
        f"a rank that nothing names gave up on others, or lost them{site}: {said}\n"
        "Others did that to it: the cause is in what another process printed"
    )


def _held_up(stuck: pd.DataFrame) -> str | None:
    if stuck.empty:
        return None
    ranks = sorted({int(rank) for rank in stuck["rank"]})
    longest = max(
        (int(found[1]) for text in stuck["message"] if (found := re.search(r"(\d+) s", str(text)))), default=0
    )
    lasted = f" for {longest} s" if longest else ""
    return (
        f"NCCL's watchdog {verb(ranks, 'thread', 'threads')} of {named(ranks)} could not run{lasted}\n"
        "A call into CUDA or NCCL, or the interpreter's lock, held them up; no collective is named"
    )


def _behind(run: Run) -> str | None:
    if run.statuses.empty:
        return None
    open_work = run.statuses[run.statuses["last_completed"] < run.statuses["last_enqueued"]]
    if open_work.empty:
        return None
    first = oldest(open_work)
    return (
        f"rank {int(first['rank'])} had completed {int(first['last_completed'])} of the {int(first['last_enqueued'])} "
        "operations that it issued, and what it waited for is not told"
    )
