"""Until when a rank that comes has come in time."""

import math

from distdiag.analyzers.investigation.lives import NEVER_NS, SECOND_NS

WHOLE_TIMEOUT = 0.9
"""A wait that lasted this share of its timeout ended because of it, not because a connection broke."""
LAST_MOMENTS = 0.2
"""Share of a timeout, at its end, in which coming is coming too late: what is left may not do for the operation."""
LAST_MOMENTS_AT_MOST_NS = 10 * SECOND_NS
"""Any collective that works ends within so long, whatever the timeout."""


def deadline_ns(timeout_seconds: float | None, since_ns: int, given_up_ns: int) -> int:
    """Return until when a rank could come in time: a timeout expires a while before its error is seen and recorded.

    Both moments are of one waiter, by its own clock. A wait that was shorter than its timeout gave up for another
    reason: until that moment.
    """
    timeout_ns = NEVER_NS if timeout_seconds is None or math.isnan(timeout_seconds) else timeout_seconds * SECOND_NS
    if given_up_ns - since_ns < WHOLE_TIMEOUT * timeout_ns:
        return given_up_ns
    moments_ns = min(LAST_MOMENTS * timeout_ns, LAST_MOMENTS_AT_MOST_NS)
    return min(given_up_ns, since_ns + int(timeout_ns - moments_ns))
