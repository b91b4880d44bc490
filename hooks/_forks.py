"""What hooks have to do when the process forks: the child has the parent's memory, but none of its threads."""

import os
from collections.abc import Callable
from functools import cache

from distdiag.errors import guard
from distdiag.hooks._patch import Undo

Act = Callable[[], None]


class _Forks:
    """What is to be done around each fork; Python offers no way to take such a handler back."""

    def __init__(self) -> None:
        self._wanted: list[tuple[Act, Act, Act]] = []

    def add(self, wanted: tuple[Act, Act, Act]) -> Undo:
        self._wanted.append(wanted)
        return lambda: self._wanted.remove(wanted) if wanted in self._wanted else None

    def before(self) -> None:
        for before, _, _ in self._wanted:
            with guard("prepare for a fork"):
                before()

    def after_in_parent(self) -> None:
        for _, after_in_parent, _ in self._wanted:
            with guard("go on after a fork"):
                after_in_parent()

    def after_in_child(self) -> None:
        wanted, self._wanted = self._wanted, []
        for _, _, after_in_child in wanted:
            with guard("leave the parent's recording alone"):
                after_in_child()


@cache
def _forks() -> _Forks:
    forks = _Forks()
    os.register_at_fork(before=forks.before, after_in_parent=forks.after_in_parent, after_in_child=forks.after_in_child)
    return forks


def _nothing() -> None:
    """Do nothing."""


def around_forks(*, before: Act = _nothing, after_in_parent: Act = _nothing, after_in_child: Act = _nothing) -> Undo:
    """Run these around each fork of this process until it is undone; a child starts with none."""
    return _forks().add((before, after_in_parent, after_in_child))
