"""What is known of each rank, and of the process groups that lines name, while the lines are put together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from distdiag import events
from distdiag.events import GROUP_UNKNOWN
from distdiag.importers._text.facts import CommunicatorRank, GroupTag, Heard, Remark, Waited, World
from distdiag.importers._text.filenames import MAX_RANK
from distdiag.importers._text.moments import LONGEST_MS, MILLISECOND_NS, Clocks
from distdiag.importers._text.names import DEFAULT_DESCRIPTION, DEFAULT_GROUP, is_point_to_point
from distdiag.importers._text.owners import Told, world_of
from distdiag.stackframes import UNKNOWN

GATHERS = frozenset({"all_gather_into_tensor"})
SCATTERS = frozenset({"reduce_scatter_tensor"})
LARGE = 512
"""Members of a group that need not stand in the log of each of them."""
LEAST_RANKS = 2
"""A single rank that speaks does not show that there are no others."""


@dataclass(slots=True, kw_only=True)
class _Group:
    description: str = ""
    seen: set[int] = field(default_factory=set)
    size: int | None = None
    timeout_ms: int | None = None


class GroupBook:
    """What is known of the groups of one attempt."""

    def __init__(self, told: Iterable[Told]) -> None:
        told = tuple(told)
        self.world = world_of(told)
        self._groups: dict[str, _Group] = {}
        self._written: set[str] = set()
        told_size = any(isinstance(each.said.what, World | CommunicatorRank) for each in told)
        spoke = {each.rank for each in told if each.rank is not None}
        spoke |= {rank for each in told if isinstance(each.said.what, Heard) for rank in each.said.what.ranks}
        all_spoke = self.world is not None and len(spoke) == self.world >= LEAST_RANKS
        self._world_is_certain = told_size or all_spoke
        for each in told:
            self._note(each)
        default = self._groups.get(DEFAULT_GROUP, _Group()).size
        if default is not None and self.world is not None and self.world < default <= MAX_RANK:
            self.world, self._world_is_certain = default, True

    def name(self, tag: GroupTag | None) -> str:
        """Return the name under which the records of a group go."""
        return GROUP_UNKNOWN if tag is None else tag.name

    def add(self, name: str, rank: int, *, description: str = "", size: int | None = None) -> None:
        """Note that a rank is a member of a group."""
        group = self._groups.setdefault(name, _Group())
        group.seen.add(rank)
        group.description = group.description or description
        group.size = size or group.size

    def record(self, name: str, time_ns: int) -> events.Group | None:
        """Return the record of a group, with all members that are known; None where none is.

        A large group is written once: the logs of other ranks are read with it.
        """
        group = self._groups.get(name, _Group())
        members, partial = self._members(name, group)
        if not members or (len(members) > LARGE and name in self._written):
            return None
        self._written.add(name)
        return events.Group(
            group=name,
            description=group.description or (DEFAULT_DESCRIPTION if name == DEFAULT_GROUP else ""),
            ranks=members,
            partial=partial,
            backend="unknown",
            timeout_seconds=group.timeout_ms / 1000 if group.timeout_ms else None,
            time_ns=time_ns,
        )

    def _members(self, name: str, group: _Group) -> tuple[list[int], bool]:
        if name == DEFAULT_GROUP and self.world is not None:
            certain = self._world_is_certain or group.size == self.world
            return list(range(max(self.world, group.size or 0))), not certain
        if name == GROUP_UNKNOWN and self.world is not None:
            # All that is known is that it lies within the world; where every rank waits, it is taken for all of it.
            return list(range(self.world)), not self._world_is_certain
        return sorted(group.seen), group.size is None or len(group.seen) < group.size

    def _note(self, told: Told) -> None:
        what = told.said.what
        tag = getattr(what, "group", None)
        if not isinstance(what, Waited):
            if isinstance(tag, GroupTag) and told.rank is not None:
                self.add(tag.name, told.rank, description=tag.description)
            return
        name = self.name(what.group)
        if told.rank is not None:
            description = what.group.description if what.group is not None else ""
            self.add(name, told.rank, description=description, size=_size(what))
        group = self._groups.setdefault(name, _Group())
        group.timeout_ms = group.timeout_ms or what.timeout_ms


def _size(waited: Waited) -> int | None:
    """Return how many ranks a group has, where the sizes of input and output tell."""
    whole, part = waited.output_numel, waited.numel
    if waited.op in SCATTERS:
        whole, part = part, whole
    if waited.op not in GATHERS | SCATTERS or not whole or not part or whole % part:
        return None
    return whole // part


def earlier(moment_ns: int, milliseconds: int) -> int:
    """Return the moment so long before another."""
    return moment_ns - min(milliseconds, LONGEST_MS) * MILLISECOND_NS


@dataclass(slots=True, kw_only=True)
class Act:
    """An operation that a rank was in."""

    op: str
    group: str
    start_ns: int
    seq: int | None = None
    end_ns: int | None = None
    error: str | None = None
    frames: tuple[str, ...] = ()
    """Outermost first."""
    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None
    root: int | None = None
    peer: int | None = None
    reduce_op: str | None = None
    module: str | None = None
    thread: str = "MainThread"
    doubtful: bool = False
    """Its group may be one of those that others name."""
    start_known: bool = True

    @property
    def p2p(self) -> bool:
        """Return whether its partners are not known: nobody says whose message it is, or what an unknown one needs."""
        return is_point_to_point(self.op) or self.op == UNKNOWN or self.doubtful


@dataclass(slots=True, kw_only=True)
class Tale:
    """What one rank told, and others told of it."""

    acts: list[Act] = field(default_factory=list)
    records: list[events.Event] = field(default_factory=list)
    began_ns: dict[str, int] = field(default_factory=dict)
    """When it came into the making of a group, by its phase."""
    ended_ns: dict[str, int] = field(default_factory=dict)
    """When that failed."""
    sites: dict[str, tuple[str, ...]] = field(default_factory=dict)
    came: dict[str, int] = field(default_factory=dict)
    """How many ranks came to it."""
    last_ns: int = 0
    """When it was last heard of in a wait that has no end."""
    stood: tuple[int, tuple[str, ...]] | None = None
    """When, and in which frames, its main thread was last seen."""
    busy: str | None = None
    """What its progress bar says that it does."""
    silent: bool = False
    """Nothing is known of it but that others speak."""
    pid: int = 0


class Job:
    """One attempt: everything told, by time, and the tales of its ranks."""

    def __init__(self, told: Sequence[tuple[int, Told]], ordinary: Mapping[int, int], clocks: Clocks) -> None:
        self.ordinary = ordinary
        """By number of file, when its last line was written that is not understood."""
        self.clocks = clocks
        self.told = sorted(told, key=lambda pair: (pair[0], pair[1].said.file, pair[1].said.line.number))
        self.groups = GroupBook(each for _, each in self.told)
        self.tales: dict[int, Tale] = {}
        self.remarks: list[tuple[int, Remark]] = []
        """Said by nobody in particular."""
        self.unsigned: list[events.Fault] = []
        """Errors of ranks that cannot be known."""
        self.ends: list[events.Fault] = []
        """Ends of processes whose ranks cannot be known."""

    @property
    def first_ns(self) -> int:
        """Return the first moment that anything was said."""
        return self.told[0][0] if self.told else 0

    @property
    def last_ns(self) -> int:
        """Return the last moment that anything was said."""
        return self.told[-1][0] if self.told else 0

    def tale(self, rank: int) -> Tale:
        """Return the tale of a rank, which begins here if it has none."""
        return self.tales.setdefault(rank, Tale())
