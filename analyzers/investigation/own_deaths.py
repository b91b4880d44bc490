"""Which rank died of something of its own, and which only of what others did to it."""

import re
from collections.abc import Mapping

from distdiag.analyzers.investigation.deaths import KILLED, Death, of_nobody, together
from distdiag.analyzers.investigation.lives import Life
from distdiag.analyzers.investigation.own_errors import OwnErrors
from distdiag.analyzers.investigation.rows import records
from distdiag.analyzers.investigation.vanished import Vanished
from distdiag.events import UNSIGNED
from distdiag.run import Run


def deaths_of(run: Run, lives: Mapping[int, Life], blocked_since: Mapping[int, int]) -> tuple[Death, ...]:
    """Return the deaths that nobody else caused, the first one first.

    ``blocked_since`` tells since when a rank was blocked in a call it never came out of.
    """
    errors, vanished = OwnErrors(run), Vanished(run, lives, blocked_since)
    each = (errors.raised(life) or vanished.ended(life) or errors.left(life) for life in lives.values())
    single = [death for death in each if death is not None]
    single += [of_nobody(fault) for fault in records(run.faults[run.faults["where"] == UNSIGNED])]
    # A log that was cut ends as that of a killed process does: its rank is named if no other can be.
    cut = set(run.quality.cut_ranks)
    sure = [death for death in single if not cut.intersection(death.ranks) or death.cause != KILLED]
    single = sure or single
    first_timeout = vanished.first_timeout_ns
    timely = [d for d in single if first_timeout is None or d.time_ns <= first_timeout]
    alike: dict[tuple[str, str, str | None], list[Death]] = {}
    for death in timely:
        alike.setdefault((death.cause, _without_numbers(death.what), death.site), []).append(death)
    return tuple(sorted(map(together, alike.values()), key=lambda death: (death.time_ns, death.ranks)))


def _without_numbers(text: str) -> str:
    # Messages name ranks, addresses and sizes that differ where the error is the same.
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)
