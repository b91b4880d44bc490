"""What hooks record through: the journal of this process and where it is in its training loop."""

import itertools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any, TextIO

from distdiag import events
from distdiag.callsites import CallSites, Site
from distdiag.identity import Identity
from distdiag.journal import Journal, log_name
from distdiag.settings import ATTEMPT_VARIABLES, Settings, whole_number
from distdiag.steps import Loop

MAX_FLIGHTS = 4096
"""Calls without a known end that are kept in mind; some backends never report completion."""
MAX_ERROR_TEXT = 500
LATE_WAIT_NS = 100_000
"""A wait that begins later after the issue than this is worth a field of its own."""


class GroupState:
    """What this process knows of one process group."""

    __slots__ = ("chain", "collectives", "event", "last_call", "last_thread", "p2p", "path_chain", "ranks", "segment")

    def __init__(self, event: events.Group) -> None:
        self.event = event
        self.ranks = event.members()
        self.collectives = event.sequence
        self.p2p = 0
        self.chain = 0
        self.path_chain = 0
        self.last_thread = 0
        self.last_call = 0
        self.segment = -1


class Flight:
    """A call whose end is not known yet.

    Every call makes one, and an ``__init__`` would be the dearest part of it: who makes one sets all fields.
    """

    __slots__ = ("call", "sequence", "signature", "start_ns", "wait_start_ns", "work")

    call: int
    sequence: int
    signature: "Interned"
    start_ns: int
    wait_start_ns: int
    work: Any


class Interned:
    """A signature that was written once, with the piece of text that its calls share."""

    __slots__ = (
        *("calls", "digest", "duration_ns", "event", "on_device", "proven_step", "rollup", "segment", "text"),
        *("unproven", "wait_ns"),
    )

    def __init__(self, event: events.Signature) -> None:
        self.event = event
        self.unproven = 0
        """Calls for which what is too dear to read each time is still compared; negative for ever."""
        self.proven_step = 0
        """Step from which on it need not be any more."""
        self.digest = event.agree
        self.on_device = event.device != "cpu"
        self.text = f',"signature":{event.signature},"seq":'
        self.rollup = f"{event.group}/{event.op}"
        self.segment = -1
        self.calls = self.duration_ns = self.wait_ns = 0


class Recorder:
    """The state of recording in one process; hooks call it, it writes to the journal.

    Attributes that hooks read and set directly are plain, because they are read on every collective.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.identity = Identity()
        self.pid = self.identity.pid
        self.main_thread = threading.main_thread().ident or 0
        self.sites = CallSites()
        self.groups: dict[Any, GroupState] = {}
        self.coalescing: dict[Any, int] = {}
        """Number of the open coalesced batch, by group."""
        self.flights: dict[int, Flight] = {}
        self.counted: list[Interned] = []
        """Signatures whose calls ended since the last step did."""
        self.modules: dict[int, str] = {}
        self.calls = 0
        self.signatures = 0
        self.step = self.forwards = self.backwards = 0
        self.phase = ""
        self.user_phases: list[str] = []
        self.context = ""
        self.backward_site: Site | None = None
        self.progress = 0
        """Grows with every sign of progress that is not a call; the stall rule watches it."""
        self.poll: Callable[[], None] = lambda: None
        """Looks for ends of calls that nobody waits for; the hook that knows how sets it."""
        self.sample_memory: Callable[..., None] = lambda ran_out=False: None
        """Writes how much memory is in use, and where it ``ran_out`` what holds it."""
        self.worker_pids: set[int] = set()
        """Processes that load data for this one."""
        self.step_ends: Callable[[], None] = lambda: None
        """Called while ``step`` still is the step that ends."""
        self.capturing = 0
        """Number of the CUDA graph that is being captured, 0 if none is."""
        self.numerics: Any = None
        """What the hook on losses and norms knows; hooks that see other numbers of a step tell it."""
        self.note_arrival: Callable[[Flight, GroupState], None] = lambda flight, state: None
        self.tend_device: Callable[[], None] = lambda: None
        self.adopt_group: Callable[[Any, GroupState], None] = lambda group, state: None
        self.exiting = False
        """The interpreter is ending; set by the exit handler."""
        self.begin_again: Callable[[], Recorder | None] = lambda: None
        """Gives a forked process, which inherited this, a recorder of its own, if it is to have one."""
        self.renamed: Callable[[], None] = lambda: None
        """Called when the log got the name of its rank."""
        self.crash_file: TextIO | None = None
        """Where faulthandler writes, while it may."""
        self.loop = Loop(self)
        self._phase_numbers = itertools.count(1)  # threads that save checkpoints have phases, too
        self.journal = Journal(
            settings.directory,
            stem=log_name(self.rank),
            attempt=whole_number(ATTEMPT_VARIABLES),
            header=self._header,
            max_bytes=settings.max_bytes,
        )
        self.set_context()
        # The first record opens the log: from here on this process is known to have started.
        self.write(events.Pulse(time_ns=time.monotonic_ns(), step=0))

    def write(self, event: events.Event) -> None:
        """Append one record; never on the path of a collective."""
        self.journal.append(events.encode(event))

    def end(self, flight: Flight, end_ns: int, clock: str = "wait", error: str | None = None) -> None:
        """Write the end of a call and add it to the sums of its step; on the path of every collective."""
        waited_ns = flight.wait_start_ns
        more = ""
        if waited_ns and waited_ns - flight.start_ns > LATE_WAIT_NS:
            more = f',"wait_start_ns":{waited_ns}'
        if error is not None:
            more += f',"failed":true,"error":{events.encode_text(error)}'
        self.journal.append(
            f'{{"kind":"done","call":{flight.call},"end_ns":{end_ns},"clock":"{clock}"{more}}}\n'.encode()
        )
        signature = flight.signature
        if not signature.calls:
            self.counted.append(signature)
        signature.calls += 1
        signature.duration_ns += end_ns - flight.start_ns
        if waited_ns:
            signature.wait_ns += end_ns - waited_ns

    def fail(self, flight: Flight, error: BaseException) -> None:
        """Write that a call ended just now with an error."""
        self.end(flight, time.monotonic_ns(), "wait", f"{type(error).__name__}: {str(error)[:MAX_ERROR_TEXT]}")

    def take_rollups(self) -> dict[str, dict[str, int]]:
        """Return the sums over the calls that ended since they were last taken, by ``group/op``."""
        counted, self.counted = self.counted, []
        rollups: dict[str, dict[str, int]] = {}
        for signature in counted:
            calls, duration_ns, wait_ns = signature.calls, signature.duration_ns, signature.wait_ns
            signature.calls = signature.duration_ns = signature.wait_ns = 0
            sums = rollups.setdefault(signature.rollup, {"calls": 0, "bytes": 0, "duration_ns": 0, "wait_ns": 0})
            sums["calls"] += calls
            sums["bytes"] += calls * signature.event.size_bytes
            sums["duration_ns"] += duration_ns
            sums["wait_ns"] += wait_ns
        return rollups

    def path_number(self, site: Site | None) -> int | None:
        """Return the number under which a site stands in the present segment, writing it if it does not yet."""
        if site is None or site is self.sites.nowhere:
            return None
        segment = self.journal.segment
        if site.segment != segment:
            site.segment = segment
            self.write(events.Path(path=site.number, frames=site.frames))
            if self.journal.segment != segment:  # the write itself began a new segment
                site.segment = self.journal.segment
        return site.number

    def here(self) -> int | None:
        """Return the path number of the caller's user frames."""
        return self.path_number(self.sites.at(sys._getframe(1)))

    def set_context(self) -> None:
        """Renew the text that all calls share until the loop moves on."""
        phase = self.user_phases[-1] if self.user_phases else self.phase
        context = f',"step":{self.step}'
        if self.forwards:
            context += f',"forwards":{self.forwards}'
        if self.backwards:
            context += f',"backwards":{self.backwards}'
        if phase:
            context += f',"phase":{events.encode_text(phase)}'
        self.context = context + ',"start_ns":'
        self.progress += 1

    def enter(self, phase: str) -> None:
        """Note that the loop came to an inferred phase: ``data``, ``forward``, ``backward`` or ``optimizer``."""
        if phase != self.phase:
            self.phase = phase
            self.set_context()

    def begin_phase(self, phase: str, **facts: Any) -> events.Phase:
        """Write the begin of a phase and return the record that ``end_phase`` wants."""
        begun = events.Phase(
            phase=phase,
            edge="begin",
            number=next(self._phase_numbers),
            time_ns=time.monotonic_ns(),
            step=self.step,
            thread=threading.current_thread().name,
            path=self.here(),
            **facts,
        )
        self.write(begun)
        return begun

    def end_phase(self, begun: events.Phase, *, failed: bool = False, **facts: Any) -> None:
        """Write the end of a phase, with facts that only its end knows."""
        self.progress += 1
        self.write(
            events.Phase(
                phase=begun.phase,
                edge="end",
                number=begun.number,
                time_ns=time.monotonic_ns(),
                step=self.step,
                thread=begun.thread,
                failed=failed,
                **facts,
            )
        )

    def enter_user_phase(self, name: str, **facts: Any) -> events.Phase:
        """Begin a phase that the user named; calls of the main thread carry it."""
        begun = self.begin_phase(name, **facts)
        if threading.get_ident() == self.main_thread:
            self.user_phases.append(name)
            self.set_context()
        return begun

    def leave_user_phase(self, begun: events.Phase, *, failed: bool, **facts: Any) -> None:
        """End a phase that the user named."""
        if threading.get_ident() == self.main_thread and self.user_phases:
            self.user_phases.pop()
            self.set_context()
        self.end_phase(begun, failed=failed, **facts)

    def decide(self, name: str, value: Any) -> None:
        """Write a decision of the user's code."""
        self.write(
            events.Decision(name=name, value=value, time_ns=time.monotonic_ns(), step=self.step, path=self.here())
        )

    @property
    def rank(self) -> int | None:
        """Return the rank of this process, None while nobody told it."""
        return self.identity.rank

    def learn_rank(self, rank: int, world_size: int, *, joined: bool = True) -> None:
        """Take the rank with which this process joins, or has ``joined``, a default group."""
        if self.identity.learn(rank, world_size, joined=joined):
            self.journal.rename(log_name(rank))
            self.renamed()
            self.journal.append(self._header(self.journal.segment))

    def beside(self, ending: str) -> FilePath:
        """Return the path of a file that belongs to this process's log, where the logs of all ranks end up."""
        directory = self.settings.directory if self.journal.shipped_from else self.journal.path.parent
        stem = log_name(self.rank) + (f".attempt{self.journal.attempt}" if self.journal.attempt else "")
        return directory / (stem + ending)

    def _header(self, segment: int) -> bytes:
        return self.identity.header(self.journal, self.settings, segment)
