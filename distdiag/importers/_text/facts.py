"""What lines of training output say, as values; which rank said it, and when, is found out later."""

import enum
from dataclasses import dataclass

from distdiag.events import ThreadStack
from distdiag.importers._text.normalise import Line
from distdiag.importers._text.times import Stamp


class Role(enum.StrEnum):
    """What a line is in the story: time-outs and kills by a launcher are never the beginning of it."""

    INITIATING = "initiating"
    CASCADE = "cascade"
    TEARDOWN = "teardown"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GroupTag:
    """A process group as a line names it: ``[PG ID 1 PG GUID 3(mesh_ulysses) Rank 2]``."""

    name: str
    """Unique name where the line has it, else the number that the process gave it."""
    description: str = ""
    rank: int | None = None
    """Rank inside the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """A collective did not end; the rank waited for it."""

    op: str
    group: GroupTag | None = None
    group_rank: int | None = None
    seq: int | None = None
    numel: int | None = None
    output_numel: int | None = None
    timeout_ms: int | None = None
    lasted_ms: int | None = None
    error: str | None = None
    """What ended it, other than its time-out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a group got on this rank; 0 where nothing got so far."""

    group: GroupTag | None
    enqueued: int | None
    completed: int | None
    failed: int | None = None
    """Number of the work that gave up, where it is this rank's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalled:
    """A rank told the others that a collective of its own gave up."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """The frames of the collective that did not end, innermost first, each ``file:line function``."""

    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A collective was issued; that it ended is not said."""

    op: str
    seq: int | None
    rank: int | None = None
    """Rank inside the group that the line speaks of; None for whoever said it."""
    group: str = ""
    size: int | None = None
    """Number of ranks in the group."""
    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None
    root: int | None = None
    reduce_op: str | None = None
    failed: bool = False
    """It ended in an error before it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Somebody says which ranks did not come; ranks are None where only their number is known."""

    what: str
    """``monitored_barrier``, ``init_process_group`` or the op."""
    ranks: tuple[int, ...]
    by: int | None = None
    """The rank that says so, where the line tells."""
    came: int | None = None
    size: int | None = None
    timeout_ms: int | None = None
    group: GroupTag | None = None
    seq: int | None = None
    gave_up: bool = True
    """Whether the waiting had an end, or is still going on."""
    broken: bool = False
    """The waiting ended because the connection broke, not because time ran out."""
    subjects: tuple[str, ...] = ()
    """Tensors that they did not bring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A rank came through what it had waited in."""

    what: str
    by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An exception, with its frames from the outermost to the innermost."""

    type: str
    message: str
    frames: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    """``type: message`` of the exceptions before it, nearest first."""
    uncaught: bool = False
    """The text shows that it ended the process."""
    fatal: bool = False
    """It came from C++ and aborted the process."""
    group: GroupTag | None = None
    """The group whose watchdog says it."""
    group_rank: int | None = None
    """Rank inside a group, as old versions print it."""
    pid: int | None = None
    """The process, where somebody else says it of it."""
    rank: int | None = None
    """The rank, where somebody else says it of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A launcher says how a process ended; negative codes are signals."""

    code: int
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    first: bool = False
    """The launcher calls it the first failure."""
    stamp: Stamp | None = None
    """When the launcher saw it."""
    task: int | None = None
    """SLURM's number of the process: its rank, unless each task is a launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torn:
    """A launcher ended a process because of another."""

    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """The watchdog thread could not run: the process was held up on the host."""

    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """The process wrote the stacks of its threads, because a signal ended it where one is named."""

    threads: tuple[ThreadStack, ...]
    signal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The number of ranks of the job."""

    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """Ranks that said something, whatever it was."""

    ranks: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something worth repeating in a report that no record has room for."""

    text: str
    telling: bool = False
    """Jobs that go well do not print it."""
    stops: bool = False
    """Somebody ended the job: how its processes ended after it tells nothing."""
    process: str = ""
    """Host and number of the process that it is of, or the number alone, as far as it says."""
    bus: int | None = None
    """Where the device that it is of is plugged in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The launcher started all processes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """What follows is said by this rank."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorRank:
    """The rank of a process in a NCCL communicator."""

    communicator: str
    rank: int
    size: int
    process: str
    identity: str = ""
    """The same on all members, where the library prints it."""
    bus: int | None = None


What = (
    Waited
    | Progress
    | Signalled
    | CallSite
    | Issued
    | Missed
    | Passed
    | Raised
    | Ended
    | Torn
    | Frozen
    | Stacked
    | World
    | Heard
    | Remark
    | Restarted
    | Speaker
    | CommunicatorRank
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Something that a line said."""

    what: What
    role: Role
    line: Line
    file: int = 0
    """Number of the file it stands in."""


SIGTERM = 15
SIGKILL = 9
SIGNAL_NUMBERS = {
    "Killed": SIGKILL,
    "Terminated": SIGTERM,
    "Aborted": 6,
    "Bus error": 7,
    "Segmentation fault": 11,
    "Out Of Memory": SIGKILL,
}
"""Numbers of signals by the words of shells and of SLURM."""


def role_of(ended: Ended) -> Role:
    """Return whether an end may be the beginning: who was told to end is a victim."""
    return Role.TEARDOWN if ended.code in (-SIGTERM, 128 + SIGTERM) else Role.INITIATING
