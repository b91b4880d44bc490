"""Whether this process is recorded, and by what: one recording at a time."""

import os
import threading
from typing import TYPE_CHECKING

from distdiag import ancestry

if TYPE_CHECKING:
    from distdiag.hooks import Installed
    from distdiag.settings import Settings

_installed: "Installed | None" = None
_lock = threading.Lock()


def begin(settings: "Settings") -> None:
    """Begin to record this process, unless it is recorded already, or a helper of a rank."""
    global _installed
    with _lock:
        if installed() is None and not ancestry.is_helper():
            from distdiag.hooks import Installed

            if _installed is not None:
                _installed.remove()  # what this process inherited from the one that forked it
            _installed = Installed(settings)


def end() -> None:
    """End the recording, and take every hook off."""
    global _installed
    with _lock:
        ended, _installed = _installed, None
        if ended is not None:
            ended.remove()


def installed() -> "Installed | None":
    """Return what records this process; None where nothing does."""
    # A forked child shares the module's state but not the log.
    if _installed is not None and _installed.recorder.pid != os.getpid():
        return None
    return _installed
