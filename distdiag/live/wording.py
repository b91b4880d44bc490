"""How ranks and durations are written in alarms."""

from collections.abc import Iterable

from distdiag.wording import named

_PLURAL = {"waits": "wait", "is": "are", "gives": "give", "has": "have"}


def saying(ranks: Iterable[int], predicate: str) -> str:
    """Write ``rank 5 waits in …`` or ``ranks 0-2,5 wait in …``."""
    wanted = set(ranks)
    verb, _, rest = predicate.partition(" ")
    return f"{named(wanted)} {_PLURAL.get(verb, verb) if len(wanted) > 1 else verb} {rest}"


def lasting(seconds: float) -> str:
    """Write a duration in the unit that a person would choose."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3 * 3600 else f"{seconds / 3600:.1f} h"
