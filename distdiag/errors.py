"""Errors meant for people, and the one guard that keeps distdiag's own errors out of a training job."""

import functools
import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

logger = logging.getLogger("distdiag")

RAISE_OWN_ERRORS = "DISTDIAG_RAISE"
"""Environment variable that makes the guard re-raise; the test suite sets it."""

First = TypeVar("First")
Second = TypeVar("Second")
Result = TypeVar("Result")


class DistdiagError(Exception):
    """Something the user can mend: one line that says what, and a hint that says how."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class guard:  # noqa: N801 - used like contextlib's lower-case context managers
    """Run own code inside somebody's training process: an error is logged, never raised.

    ``what`` names the work for the log line. With ``DISTDIAG_RAISE`` set the error is raised after all.
    ``error`` tells afterwards what was kept out and where, ``KeyError at file.py:12``; no traceback is held.
    """

    __slots__ = ("_what", "error")

    def __init__(self, what: str) -> None:
        self._what = what
        self.error: str | None = None

    def __enter__(self) -> None:
        """Begin own code."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else ""
        self.error = kind.__name__ + place
        return _contained(self._what)


def guarded(what: str, function: Callable[[First, Second], Result]) -> Callable[[First, Second], Result | None]:
    """Return ``function`` behind the guard, for paths where a context manager would cost too much.

    An error gives None. Two arguments, because passing any number of them on would double the cost.
    """

    @functools.wraps(function)
    def contained(first: First, second: Second) -> Result | None:
        try:
            return function(first, second)
        except Exception:
            if not _contained(what):
                raise
            return None

    return contained


def _contained(what: str) -> bool:
    """Log the exception being handled as distdiag's own; return whether it may be swallowed."""
    if os.environ.get(RAISE_OWN_ERRORS):
        return False
    logger.debug("distdiag could not %s", what, exc_info=True)
    return True
