"""Hooks: each module here watches one surface of a library and records what it sees.

A hook module has ``install(recorder) -> Undo``. To add one, write the module and name it in ``HOOKS``.
"""

if __name__ != "distdiag.hooks":
    raise ImportError("these modules belong to distdiag: import distdiag.hooks")

import os
from typing import Protocol

from distdiag.errors import guard
from distdiag.hooks import (
    autograd,
    checkpoints,
    children,
    collectives,
    compiles,
    completion,
    control,
    cuda,
    dataloader,
    exceptions,
    exits,
    garbage,
    groups,
    memory,
    modules,
    numerics,
    optimizer,
    pulse,
    recomputation,
    replicas,
)
from distdiag.hooks._patch import Undo, together
from distdiag.recorder import Recorder
from distdiag.settings import Settings


class Hook(Protocol):
    """What a hook module has to have."""

    __name__: str

    def install(self, recorder: Recorder) -> Undo:
        """Begin to watch; return what ends it without trace."""


HOOKS: tuple[Hook, ...] = (
    exits,
    exceptions,
    garbage,
    memory,
    groups,
    children,
    cuda,
    completion,
    collectives,
    modules,
    autograd,
    numerics,
    replicas,
    recomputation,
    optimizer,
    compiles,
    dataloader,
    checkpoints,
    pulse,
    control,
)


class Installed:
    """Everything that one ``install()`` put in place."""

    def __init__(self, settings: Settings) -> None:
        self.recorder = Recorder(settings)
        undos: list[Undo] = []
        for hook in HOOKS:
            with guard(f"install {hook.__name__}"):
                undos.append(hook.install(self.recorder))
        self._undo = together(undos)
        # Hooks' threads must end before the interpreter does: as plain daemons they abort healthy exits.
        self._forget_end = exits.when_ending(self.recorder, self._leave)

    def remove(self) -> None:
        """Take every hook off and close the log; a forked child takes them off for itself alone."""
        self._forget_end()
        if os.getpid() != self.recorder.pid:
            self.recorder.flights.clear()  # the parent will learn of their ends
        with guard("remove the hooks"):
            self._undo()
        self.recorder.journal.close()

    def _leave(self) -> None:
        if os.getpid() == self.recorder.pid:
            self.recorder.exiting = True
            self.remove()
