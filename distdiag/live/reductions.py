"""Reductions whose kind (a sum, a maximum) recorders read: only those can be compared while a job runs."""

from collections.abc import Mapping

from distdiag import events
from distdiag.thinning import READ_AT_FIRST, READ_EACH

OPEN_KEPT = 1024
"""Reductions of a group of which the kinds of some members are still to come, or were not read."""
Kinds = Mapping[str, tuple[events.Signature, list[int]]]
"""By kind: a signature of it, and the ranks that asked for it."""


class ReadReductions:
    """The reductions of one group whose kinds were read, until those of all members are there."""

    __slots__ = ("_members", "_open", "mixed_at")

    def __init__(self, members: int) -> None:
        self._members = members
        self._open: dict[int, dict[str, tuple[events.Signature, list[int]]]] = {}
        self.mixed_at = 0
        """Number of the first reduction seen that members asked for in several kinds."""

    def note(self, rank: int, seq: int, kind: str, signature: events.Signature) -> None:
        """Take the kind of one member's reduction."""
        if 0 < self.mixed_at < seq:
            return  # what follows is its consequence
        kinds = self._open.setdefault(seq, {})
        _, ranks = kinds.setdefault(kind, (signature, []))
        ranks.append(rank)
        if len(kinds) > 1:
            self.mixed_at = seq
        elif len(ranks) >= self._members:
            del self._open[seq]
        elif len(self._open) > OPEN_KEPT:
            del self._open[next(iter(self._open))]

    def mixed(self) -> Kinds:
        """Return who asked for which kind in the first reduction in which they differ."""
        return self._open.get(self.mixed_at, {})


class KindsRead:
    """Says of each reduction of one rank whether its kind was read, as ``distdiag.thinning`` has it."""

    __slots__ = ("_lines", "_of", "_whole")

    def __init__(self) -> None:
        self._whole = True
        self._lines: dict[tuple[object, ...], dict[str, int]] = {}
        """By all that tells signatures apart but the kind: how often each kind was asked for."""
        self._of: dict[int, tuple[dict[str, int], str]] = {}
        """The line of each signature, and its kind."""

    def miss(self) -> None:
        """Note that calls were not seen: which of a line's are the first is not known any more."""
        self._whole = False

    def read(self, number: int, signature: events.Signature) -> str | None:
        """Return the kind of the next reduction, None where it may have been taken over from an earlier call."""
        known = self._of.get(signature.signature)
        if known is None:
            if signature.reduce_op is None:
                return None
            line = self._lines.setdefault(_line(signature), {})
            line.setdefault(signature.reduce_op, 0)
            known = self._of[signature.signature] = line, signature.reduce_op
        line, kind = known
        line[kind] = count = line[kind] + 1
        # Once a line was seen to have several kinds, it is asked each time.
        if len(line) > 1 or number % READ_EACH == 1 or (self._whole and count <= READ_AT_FIRST):
            return kind
        return None


def _line(signature: events.Signature) -> tuple[object, ...]:
    shapes = tuple(map(tuple, signature.shapes))
    return signature.group, signature.path, signature.agree, shapes, signature.module, signature.thread
