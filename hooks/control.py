"""Does what somebody asks of this rank while it runs: stacks, more or less detail, the search for bad numbers.

Requests are files in the directory of the logs, looked for once a second by a thread of its own: on a network file
system it may hang there, and neither training nor the pulse waits for it.
"""

import dataclasses
import threading
import time
from collections.abc import Callable

from distdiag import events, requests
from distdiag.errors import guard
from distdiag.hooks import stacks
from distdiag.hooks._patch import Undo
from distdiag.recorder import Recorder
from distdiag.requests import Request

LOOK_SECONDS = 1.0
PULSES = {"down": 5.0, "up": 0.25}
"""Pulse intervals of less and of more detail, in seconds."""


def install(recorder: Recorder) -> Undo:
    """Start to look for requests; those that are already there are not for this process."""
    control = Control(recorder)
    control.start()
    return control.stop


class Control:
    """The thread that looks for requests and meets them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._logs = recorder.settings.directory
        self._usual_seconds = recorder.settings.pulse_seconds
        self._look_seconds = min(LOOK_SECONDS, self._usual_seconds)
        self._seen: set[str] | None = None
        self._numerics_until: int | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distdiag-control", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and join it; a forked child has none, and one that hangs in a file system is left."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        with guard("look for requests"):
            self._seen = requests.names(self._logs)
        while not self._stopped.wait(self._look_seconds):
            with guard("meet a request"):
                self._look()

    def _look(self) -> None:
        seen = self._seen or set()
        self._end_numerics()
        present = requests.names(self._logs)
        self._seen = present
        for name in sorted(present - seen):
            request = requests.read(self._logs, name)
            if request is not None and (request.ranks is None or self._recorder.rank in request.ranks):
                self._meet(request)

    def _meet(self, request: Request) -> None:
        meets: dict[str, Callable[[Request], None]] = {
            "stacks": self._write_stacks,
            "detail": self._change_detail,
            "numerics": self._arm_numerics,
        }
        meets[request.ask](request)
        recorder = self._recorder
        recorder.write(
            events.Decision(name=requests.ANSWER, value=request.name, time_ns=time.monotonic_ns(), step=recorder.step)
        )

    def _write_stacks(self, request: Request) -> None:
        source, threads = stacks.take(native=self._recorder.settings.native_stacks, stopped=self._stopped)
        self._recorder.write(
            events.Stack(time_ns=time.monotonic_ns(), reason="request", source=source, threads=threads)
        )

    def _change_detail(self, request: Request) -> None:
        seconds = PULSES.get(request.level, self._usual_seconds)
        self._recorder.settings = dataclasses.replace(self._recorder.settings, pulse_seconds=seconds)

    def _arm_numerics(self, request: Request) -> None:
        numerics = self._recorder.numerics
        if numerics is not None:
            numerics.modules.arm()
            self._numerics_until = self._recorder.step + request.steps

    def _end_numerics(self) -> None:
        numerics = self._recorder.numerics
        if self._numerics_until is not None and self._recorder.step >= self._numerics_until:
            self._numerics_until = None
            if numerics is not None:
                numerics.modules.off()
