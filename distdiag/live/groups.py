"""Process groups as their members record them, and where the calls of members part."""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from distdiag import events
from distdiag.live.agreement import LiveReplicas, ReadReductions
from distdiag.live.links import Links

HEADS_KEPT = 4096
"""Calls of a group that not all members have reached yet; a rank that is further behind is not compared."""


class Side(NamedTuple):
    """Ranks whose calls of a group are the same up to and including one number."""

    call: str
    """``all_reduce of 4 float32`` and the like."""
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first call of a group that its members did not issue alike."""

    seq: int
    sides: tuple[Side, ...]
    """The larger first."""
    evidence: str
    """What says so."""
    most_of: int = 0
    """Of how many ranks the larger side has to be most for the others to differ from most."""

    @property
    def minority(self) -> tuple[int, ...]:
        """Return the ranks that differ from most; none where it is a tie."""
        first, *others = self.sides
        if any(len(other.ranks) == len(first.ranks) for other in others) or 2 * len(first.ranks) <= self.most_of:
            return ()
        return tuple(sorted(rank for other in others for rank in other.ranks))


@dataclass(slots=True)
class _Head:
    chain: int
    signature: events.Signature
    ranks: list[int]
    others: dict[int, tuple[events.Signature, list[int]]] = field(default_factory=dict)


class GroupState:
    """One process group: how far each member is, and whether their calls agree.

    Chain hashes that are equal at a number say that all calls before it agreed, so the first number at which
    they differ is where the members parted. Only ranks whose recording began at the same number are compared.
    Kinds of reductions, which are not all read and no part of the chains, are compared number by number.
    """

    __slots__ = ("_heads", "_parted_at", "_reductions", "description", "members", "name", "newest", "start", "unlike")

    def __init__(self, group: events.Group, members: tuple[int, ...]) -> None:
        self.name = group.group
        self.description = group.description
        self.members = members
        self.start = group.sequence
        self.newest = group.sequence
        self.unlike: set[int] = set()
        """Ranks whose chains cannot be compared."""
        self._heads: OrderedDict[int, _Head] = OrderedDict()
        self._parted_at = 0
        self._reductions = ReadReductions(len(members))

    @property
    def label(self) -> str:
        """Return the name that people know."""
        return self.description if self.description not in ("", "undefined") else self.name

    def note(self, rank: int, seq: int, chain: int, signature: events.Signature, kind: str | None = None) -> None:
        """Take a rank's call into account; ``kind`` is that of its reduction, if it was read."""
        if seq > self.newest:
            self.newest = seq
        if kind is not None and rank not in self.unlike:
            self._reductions.note(rank, seq, kind, signature)
        if self._parted_at:
            if seq != self._parted_at:
                return
        elif rank in self.unlike or not chain:
            return
        head = self._heads.get(seq)
        if head is None:
            self._heads[seq] = _Head(chain, signature, [rank])
            if len(self._heads) > HEADS_KEPT:
                self._heads.popitem(last=False)
        elif head.chain == chain:
            head.ranks.append(rank)
            if len(head.ranks) >= len(self.members) and not head.others:
                del self._heads[seq]
        else:
            self._parted_at = self._parted_at or seq
            head.others.setdefault(chain, (signature, []))[1].append(rank)

    def parting(self) -> Parting | None:
        """Return where the members parted, None as long as their calls agree."""
        head = self._heads.get(self._parted_at) if self._parted_at else None
        if head is None:
            return self._mixed()
        known = [(head.signature, head.ranks), *head.others.values()]
        sides = [Side(_in_words(signature), tuple(sorted(ranks))) for signature, ranks in known]
        evidence = f"their chain hashes agreed up to call {self._parted_at - 1}"
        return self._mixed() or Parting(seq=self._parted_at, sides=_largest_first(sides), evidence=evidence)

    def _mixed(self) -> Parting | None:
        """Return the first reduction that members asked for in several kinds, if it came before their calls parted."""
        seq, kinds = self._reductions.mixed_at, self._reductions.mixed()
        if not seq or 0 < self._parted_at <= seq:
            return None
        sides = [Side(f"{_in_words(first)} by {kind}", tuple(sorted(ranks))) for kind, (first, ranks) in kinds.items()]
        evidence = "their calls agree in all but the kind of the reduction, which no backend compares"
        return Parting(seq=seq, sides=_largest_first(sides), evidence=evidence, most_of=len(self.members))


def _largest_first(sides: list[Side]) -> tuple[Side, ...]:
    return tuple(sorted(sides, key=lambda side: (-len(side.ranks), side.ranks)))


def _in_words(signature: events.Signature) -> str:
    size = sum(map(math.prod, signature.shapes))
    return f"{signature.op} of {size} {signature.dtype}" if size and signature.dtype else signature.op


class Groups:
    """All groups of a job, each the same object for all its members."""

    def __init__(self) -> None:
        self.all: dict[tuple[str, tuple[int, ...], int], GroupState] = {}
        """By name, members, and how often such a group was destroyed and made again."""
        self._of: dict[tuple[int, str], GroupState] = {}
        self._made: dict[tuple[int, str, tuple[int, ...]], list[int]] = {}
        """When a rank recorded such a group; each segment of its log repeats that."""
        self.links = Links()
        self.replicas = LiveReplicas()

    def learn(self, rank: int, record: events.Group) -> bool:
        """Take a member's record of a group, and return whether the group is new; damaged ones are left out."""
        try:
            members = record.members()
        except ValueError:
            return False
        made = self._made.setdefault((rank, record.group, members), [])
        new = record.time_ns not in made
        if new:
            made.append(record.time_ns)
        key = record.group, members, made.index(record.time_ns)
        group = self.all.get(key)
        if group is None:
            group = self.all[key] = GroupState(record, members)
        if record.sequence != group.start:
            group.unlike.add(rank)
        self._of[rank, record.group] = group
        return new

    def of(self, rank: int, name: str) -> GroupState | None:
        """Return the group that a rank means by a name."""
        return self._of.get((rank, name))
