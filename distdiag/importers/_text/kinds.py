"""Kinds of lines: how one is found, how it is read, and what it is in the story."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from distdiag.importers._text.facts import Role, What
from distdiag.importers._text.normalise import Line

MAX_JOINED = 4
"""A terminal of 80 columns breaks most messages that are worth joining into so many more lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kind of line: how it is found, how it is read, and what it is in the story."""

    name: str
    needles: tuple[str, ...]
    """Words of which a line of this kind has at least one."""
    role: Role
    parse: Callable[[Line], Iterable[What]]
    ending: str = ""
    """Pattern of what a whole line of this kind holds; without it the next lines are joined to it."""
    lines: int = MAX_JOINED
    """How many more lines it may have."""


class Block(Protocol):
    """A message of several lines that is being read."""

    def feed(self, line: Line) -> bool:
        """Take the next line of the process; return False if it belongs to the block no more."""

    def close(self) -> Iterable[tuple[What, Role]]:
        """Return what the block said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFamily:
    """One kind of message of several lines."""

    name: str
    needles: tuple[str, ...]
    open: Callable[[Line], Block | None]


def nothing(line: Line) -> Iterable[What]:
    """Read nothing: the line only repeats what others say, or tidies up."""
    del line
    return ()
