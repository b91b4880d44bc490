"""What a device did during the measured steps of a trace; all times are whole nanoseconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Why a device or stream was idle, in nanoseconds."""

    host_wait_ns: int
    """The host launched the next work only after the last had ended."""
    kernel_wait_ns: int
    """The next work was launched in time and followed within ``SHORT_GAP_NS``."""
    other_wait_ns: int
    """The next work was launched in time and waited for something else, such as another stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """How many launches wait for a stream."""

    mean: float
    """Over time."""
    longest: int
    full_share: float | None
    """Share of the time with at least ``FULL_QUEUE``, where launching blocks; None where the limit is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream of a device."""

    stream: int
    activities: int
    busy_ns: int
    idle: Idle | None
    """None where there is no gap, so no shares of it either."""
    queue: Queue | None
    """None where nothing was launched in this trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """All runs of one kernel."""

    name: str
    kind: str
    count: int
    total_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """What one process group communicated."""

    group: str
    busy_ns: int
    exposed_ns: int
    """While no compute kernel ran."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What was launched in one step."""

    step: int
    activities: int
    compute_ns: int
    communication_ns: int
    exposed_ns: int
    groups: tuple[Communication, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One device of one trace, over its window."""

    device: int
    steps: tuple[int, ...]
    """Numbers of the steps that were measured; empty where the trace has fewer than two."""
    window_start_ns: int
    window_ns: int
    idle_ns: int
    compute_ns: int
    communication_ns: int
    exposed_ns: int
    """Communication while no compute kernel ran."""
    memory_ns: int
    activities: int
    """Kernels and copies that count."""
    without_launch: int
    """Kernels and copies of this device whose launch is not in the trace."""
    in_last_step: int
    """Kernels and copies left out because they were launched in the last step."""
    idle: Idle
    launch_delays_ns: tuple[int, int, int] | None
    """From launch to start: a tenth, half and nine tenths of the work starts within these; None without launches."""
    streams: tuple[Stream, ...]
    kernels: tuple[Kernel, ...]
    """Those that took most time."""
    groups: tuple[Communication, ...]
    per_step: tuple[StepWork, ...]
    notes: tuple[str, ...]
