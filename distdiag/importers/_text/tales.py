"""What is known of each rank while the lines are put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from distdiag import events
from distdiag.importers._text.facts import Remark
from distdiag.importers._text.groups import GroupBook
from distdiag.importers._text.moments import LONGEST_MS, MILLISECOND_NS, Clocks
from distdiag.importers._text.names import is_point_to_point
from distdiag.importers._text.owners import Told
from distdiag.stackframes import UNKNOWN


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
