"""What is known of one rank at this moment, kept up to date by the records it writes."""

from collections import deque
from typing import Any, NamedTuple

from distdiag import events
from distdiag.live.agreement import KindsRead
from distdiag.live.groups import Groups, GroupState

INFERRED_PHASES = frozenset({"", "data", "forward", "backward", "optimizer"})
"""Phases that recording infers; any other name is one that the user gave."""
LONG_ACTIVITIES = frozenset({"compile", "checkpoint"})
"""What may rightly take long; a pulse infers it from the stack."""
STEPS_KEPT = 512
STEPS_IN_ALL = 512 * 1024
"""Of larger jobs fewer are kept of each rank."""
LEAST_STEPS_KEPT = 64
MEMORY_KEPT = 90
OPEN_CALLS_KEPT = 64
"""Some backends never report the end of a call."""
FAILURES_KEPT = 8
GROUPS_KEPT = 16
"""Groups of a rank of which sums are kept apart; those of more are ``OTHERS``."""
OTHERS = "other"
STILL_NS = 2_000_000_000
"""A rank that made no progress for so long does not compute beside its open calls."""
JOINING = frozenset({"init_process_group", "new_group", "split_group", "destroy_process_group", "TCPStore"})
"""Phases that recording opens around the making of groups."""


class StepTimes(NamedTuple):
    """One step of a rank, in nanoseconds."""

    step: int
    end_ns: int
    duration_ns: int
    own_ns: int | None
    """Without the time in which any operation was under way; None where these were not all read."""


class MemorySample(NamedTuple):
    """Memory in use at a moment, in bytes, and how much there is; None where nothing limits it."""

    time_ns: int
    used_bytes: int
    limit_bytes: int | None


class OpenPhase(NamedTuple):
    """A phase that has not ended."""

    name: str
    begun_ns: int


class RankState:
    """One process. Times are nanoseconds of its own monotonic clock, ``offset_ns`` maps them to wall time."""

    __slots__ = (
        "activity", "activity_since_ns", "arrived", "attempt", "batch_since_ns", "busy_ns", "busy_until_ns", "cpu_at",
        "cpu_share", "died", "ended", "facts", "failed_call", "found_left", "groups", "header", "held_since_ns",
        "joining", "kinds", "last_call", "last_ns", "limit_seconds", "longest_ns", "memory", "open_calls", "path",
        "paths", "phase", "phases", "progress_ns", "pulse_calls", "raised", "rank", "sequences", "signatures",
        "spent", "stack", "started", "step", "steps", "steps_seen", "tokens", "waiting",
    )  # fmt: skip

    def __init__(self, rank: int, header: events.Header, groups: Groups) -> None:
        self.rank = rank
        self.header = header
        self.attempt = header.attempt
        self.groups = groups
        self.arrived = 0.0
        """When its last record came, by the clock of who watches."""
        self.found_left = False
        """Whether its log had long not been written when it was first read, nor was since."""
        self.last_ns = self.progress_ns = header.monotonic_ns
        self.limit_seconds = header.stall_after_seconds
        self.started = False
        """Whether it is past its imports: it has begun to join the job, to call or to step."""
        self.step = 0
        self.phase = ""
        self.activity: str | None = None
        self.activity_since_ns = 0
        self.path: int | None = None
        self.pulse_calls = 0
        self.cpu_at: tuple[int, int] | None = None
        """CPU time of the process at its last pulse, and when that was."""
        self.cpu_share = 0.0
        """Of a processor, between its last two pulses."""
        self.waiting: list[int] = []
        self.phases: dict[int, OpenPhase] = {}
        self.joining: events.Phase | None = None
        """Where it went to meet the others, while it waits there."""
        self.longest_ns: dict[str, int] = {}
        """Longest that a phase or activity of this name took so far."""
        self.batch_since_ns: int | None = None
        self.paths: dict[int, list[str]] = {}
        self.signatures: dict[int, events.Signature] = {}
        self.kinds = KindsRead()
        self.open_calls: dict[int, events.Call] = {}
        self.held_since_ns: int | None = None
        """Since when the newest call may hold it up; None where that has ended."""
        self.busy_ns = 0
        """Time in this step in which calls held it up."""
        self.busy_until_ns = 0
        """The end of what is counted so far: what overlaps counts once."""
        self.last_call: events.Call | None = None
        self.sequences: dict[str, int] = {}
        """Number of the last collective in each group, by the group's name."""
        kept = min(STEPS_KEPT, max(STEPS_IN_ALL // max(header.world_size or 1, 1), LEAST_STEPS_KEPT))
        self.steps: deque[StepTimes] = deque(maxlen=kept)
        self.steps_seen = 0
        self.tokens: deque[tuple[int, float]] = deque(maxlen=kept)
        self.spent: dict[str, dict[str, int]] = {}
        """By group: ``wait_ns``, ``duration_ns``, ``bytes`` and ``calls`` of the collectives of all steps seen."""
        self.facts: dict[str, Any] = {}
        self.memory: deque[MemorySample] = deque(maxlen=MEMORY_KEPT)
        self.stack: events.Stack | None = None
        self.raised: deque[events.Fault] = deque(maxlen=FAILURES_KEPT)
        self.died: events.Fault | None = None
        """The exception that ended it, or its exit with an error."""
        self.ended = False
        self.failed_call: events.Call | None = None
        """The last call that ended with an error."""

    @property
    def offset_ns(self) -> int:
        """Return what to add to its times to get wall time."""
        return self.header.wall_ns - self.header.monotonic_ns

    @property
    def host(self) -> str:
        """Return its host's name."""
        return self.header.host

    @property
    def alive(self) -> bool:
        """Return whether it has not told its end."""
        return not self.ended

    def place(self) -> str | None:
        """Return ``file:line function`` of the innermost user frame at the last pulse."""
        frames = self.paths.get(self.path or 0)
        return frames[-1] if frames else None

    def current_call(self) -> events.Call | None:
        """Return the call that the rank waits in: the oldest one it was seen waiting for that has not ended.

        Waits in C++, as of a reducer, are not seen: a rank that does not move waits for the oldest open call.
        """
        for number in self.waiting:
            call = self.open_calls.get(number)
            if call is not None:
                return call
        if self.open_calls and self.last_ns - self.progress_ns > STILL_NS:
            return next(iter(self.open_calls.values()))
        return None

    def group_of(self, call: events.Call) -> GroupState | None:
        """Return the group of a call, None where its records are lost."""
        signature = self.signatures.get(call.signature)
        return self.groups.of(self.rank, signature.group) if signature else None

    def user_phase(self) -> OpenPhase | None:
        """Return the open phase that the user named."""
        for open_phase in reversed(self.phases.values()):
            if open_phase.name not in JOINING:
                return open_phase
        if self.phase not in INFERRED_PHASES:  # its begin was not read
            return OpenPhase(self.phase, self.progress_ns)
        return None

    def is_exempt(self) -> bool:
        """Return whether it is in something that may rightly take long: a phase of the user, compiling, saving."""
        return self.user_phase() is not None or self.activity in LONG_ACTIVITIES
