"""How this process came to be: by a launcher of ranks, or by the multiprocessing of a program.

A program may start its ranks itself (``torch.multiprocessing.spawn``), and a rank may start helpers (the workers of a
data loader). Both import the program's main module anew where they are not forked, and so come to its ``install()``.
"""

import os
import sys
from typing import Any

HELPER_VARIABLE = "DISTDIAG_HELPER_OF"
"""Holds the number of the process that starts a helper, while it does: the helper finds it in its environment."""


def started_by() -> int | None:
    """Return the number of the process that started this one by multiprocessing; None where nobody did."""
    process = _multiprocessing()
    if process is None:
        return None
    parent = process.parent_process()
    if parent is not None and parent.pid is not None:
        return int(parent.pid)
    return os.getppid() if is_beginning() else None


def is_beginning() -> bool:
    """Return whether multiprocessing is still making this process: it imports the main module, and then its task."""
    process = _multiprocessing()
    return process is not None and bool(getattr(process.current_process(), "_inheriting", False))


def is_helper() -> bool:
    """Return whether this process begins as a helper of a rank, and not as a rank."""
    return is_beginning() and os.environ.get(HELPER_VARIABLE) == str(os.getppid())


def _multiprocessing() -> Any:
    """Return the module that knows; None where nobody has imported it, as in what multiprocessing did not start."""
    return sys.modules.get("multiprocessing.process")
