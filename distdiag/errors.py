"""Errors meant for people, and the one guard that keeps distdiag's own errors out of a training job."""

import contextlib
import logging
import os
from collections.abc import Iterator

logger = logging.getLogger("distdiag")

RAISE_OWN_ERRORS = "DISTDIAG_RAISE"
"""Environment variable that makes the guard re-raise; the test suite sets it."""


class DistdiagError(Exception):
    """Something the user can mend: one line that says what, and a hint that says how."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@contextlib.contextmanager
def guard(what: str) -> Iterator[None]:
    """Run own code inside somebody's training process: an error is logged, never raised.

    ``what`` names the work for the log line. With ``DISTDIAG_RAISE`` set the error is re-raised.
    """
    try:
        yield
    except Exception:
        report_own_error(what)


def report_own_error(what: str) -> None:
    """Log the exception being handled as distdiag's own, or re-raise it under ``DISTDIAG_RAISE``."""
    if os.environ.get(RAISE_OWN_ERRORS):
        raise
    logger.debug("distdiag could not %s", what, exc_info=True)
