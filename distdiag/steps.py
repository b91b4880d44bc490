"""Turns marks of the training loop into step records whose parts add up to the step."""

import os
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from distdiag import events

PARTS = ("data", "forward", "backward", "optimizer")
MEMORY_INTERVAL_NS = 100_000_000
"""Reading memory takes about 30 µs: not in every step of a fast loop."""


class Position(Protocol):
    """What the loop moves: the part of a recorder that every call's record shares."""

    step: int
    forwards: int
    backwards: int
    calls: int
    phase: str
    sample_memory: Callable[[], None]
    step_ends: Callable[[], None]

    def enter(self, phase: str) -> None:
        """Set the inferred phase."""

    def set_context(self) -> None:
        """Renew what calls share."""

    def take_rollups(self) -> dict[str, dict[str, int]]:
        """Return the sums over the calls that ended."""

    def write(self, event: events.Event) -> None:
        """Append a record."""


class Loop:
    """Where the main thread is in its training loop; hooks and the public API tell it.

    Inferred phases follow one another without a gap, so that their durations sum up to the step:
    ``data`` → ``forward`` → ``backward`` → ``optimizer``, and nothing for what is between them.
    """

    def __init__(self, recorder: Position) -> None:
        self._recorder = recorder
        self._spent = dict.fromkeys(PARTS, 0)
        self._entered_ns = 0
        self._start_ns = 0
        self._start_cpu_ns = 0
        self._queue = RunQueue()
        self._start_queued_ns: int | None = None
        self._calls = 0
        self._optimizers = 0
        self._amendable = False
        self._next_memory_ns = 0
        self.recomputed_ns: int | None = None
        """How long activations were computed again in this step; the hook that watches that adds to it."""

    def enter(self, phase: str) -> str:
        """Leave the present phase for another one; return the one left."""
        recorder = self._recorder
        now = time.monotonic_ns()
        left = recorder.phase
        if not self._start_ns:
            self._begin(now)
        elif left in self._spent:
            self._spent[left] += now - self._entered_ns
        self._entered_ns = now
        recorder.enter(phase)
        return left

    def begin_forward(self) -> None:
        """A root forward begins."""
        self._recorder.forwards += 1
        self.enter("forward")
        self._recorder.set_context()

    def begin_backward(self) -> str:
        """A backward begins; return the phase it interrupts."""
        self._recorder.backwards += 1
        self._optimizers = 0
        left = self.enter("backward")
        self._recorder.set_context()
        return left

    def begin_optimizer(self) -> None:
        """An optimizer's step begins; optimizers may nest."""
        self._optimizers += 1
        self.enter("optimizer")

    def end_optimizer(self) -> None:
        """An optimizer's step ended; the outermost one ends the training step, if anything was trained."""
        self._optimizers = max(0, self._optimizers - 1)
        if self._optimizers:
            return
        self.enter("")
        if self._recorder.forwards or self._recorder.backwards:
            self._finish({})
            self._amendable = True

    def mark(self, facts: dict[str, Any]) -> None:
        """End a step by the user's word, or add facts to the step that the optimizer just ended."""
        recorder = self._recorder
        idle = not (recorder.forwards or recorder.backwards or recorder.calls > self._calls)
        if self._amendable and idle:
            recorder.write(events.Step(step=recorder.step - 1, facts=facts))
            self._amendable = False
        else:
            self.enter("")
            self._finish(facts)

    def _begin(self, now: int) -> None:
        self._start_ns = now
        self._start_cpu_ns = time.process_time_ns()
        self._start_queued_ns = self._queue.waited_ns()

    def _finish(self, facts: dict[str, Any]) -> None:
        recorder = self._recorder
        now, cpu_ns, queued = time.monotonic_ns(), time.process_time_ns(), self._queue.waited_ns()
        recorder.write(
            events.Step(
                step=recorder.step,
                start_ns=self._start_ns,
                end_ns=now,
                data_ns=self._spent["data"],
                forward_ns=self._spent["forward"],
                backward_ns=self._spent["backward"],
                optimizer_ns=self._spent["optimizer"],
                forwards=recorder.forwards,
                backwards=recorder.backwards,
                calls=recorder.calls,
                cpu_ns=cpu_ns - self._start_cpu_ns,
                queued_ns=None if queued is None else queued - (self._start_queued_ns or 0),
                recompute_ns=self.recomputed_ns,
                facts=facts,
                rollups=recorder.take_rollups(),
            )
        )
        recorder.step_ends()
        if now >= self._next_memory_ns:
            self._next_memory_ns = now + MEMORY_INTERVAL_NS
            recorder.sample_memory()
        self._spent, self.recomputed_ns = dict.fromkeys(PARTS, 0), None
        self._start_ns, self._start_cpu_ns, self._start_queued_ns = now, cpu_ns, queued
        self._calls = recorder.calls
        recorder.step += 1
        recorder.forwards = recorder.backwards = 0
        self._amendable = False
        recorder.set_context()


class RunQueue:
    """How long the main thread has waited for a processor, where the system tells.

    On shared cores that tells a rank that is slow from one that does not get to run. Reading takes 3 µs, opening 20.
    """

    def __init__(self) -> None:
        try:
            # The process's own entry is that of its main thread, whose number ``threading`` gets wrong after a fork.
            self._file = os.open("/proc/self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1
        else:
            weakref.finalize(self, os.close, self._file)

    def waited_ns(self) -> int | None:
        """Return the time so far, None where the system does not tell it."""
        try:
            return int(os.pread(self._file, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return None
