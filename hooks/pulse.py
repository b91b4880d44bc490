"""A sign of life each second from a thread of its own: where the main thread is, and whether it still moves."""

import faulthandler
import os
import sys
import threading
import time
from types import FrameType

import psutil

from distdiag import events
from distdiag.errors import guard
from distdiag.hooks import stacks
from distdiag.hooks._connections import NO_CONNECTIONS, connections
from distdiag.hooks._forks import around_forks
from distdiag.hooks._patch import Undo
from distdiag.recorder import Recorder

LONGEST_GAPS = 5.0
"""A phase may be still for five times its longest gap so far before it counts as stalled."""
WARM_UP_STEPS = 2
"""Compilation, lazy connections and caches make the first steps' gaps no measure."""
ACTIVITIES = (
    ("data-loading", ("/torch/utils/data/",)),
    ("checkpoint", ("/torch/distributed/checkpoint/", "/torch/serialization.py")),
    ("compile", ("/torch/_dynamo/", "/torch/_inductor/", "/torch/_functorch/")),
)
STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
PACKAGES = ("/site-packages/", "/dist-packages/")
DEBUGGERS = ("/pydevd", "/debugpy/")
HOLDERS = (
    ("debugger", ("/bdb.py",)),
    ("process", ("/subprocess.py", "/multiprocessing/")),
    ("thread", ("/queue.py", "/threading.py", "/concurrent/futures/")),
    ("network", ("/socket.py", "/ssl.py", "/http/", "/urllib/")),
)
"""What a thread waits for that stands in these files of Python's library; users have files of such names, too."""
TELLS_LINKS_AT = 0.5
"""Share of the stall limit at which the connections are told, so that they are known when it is a stall."""
MAX_WAITING = 16
MAX_STACK_DEPTH = 200


def install(recorder: Recorder) -> Undo:
    """Start the pulse."""
    pulse = Pulse(recorder)
    pulse.start()
    return pulse.stop


class Pulse:
    """The thread that writes pulses, notices stalls, takes stacks and tends the journal."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._process = psutil.Process()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distdiag-pulse", daemon=True)
        self._seen = (-1, -1)
        self._moved_ns = time.monotonic_ns()
        self._moved_in = ""
        self._gaps: dict[str, int] = {}
        self._reported = False
        self._links = NO_CONNECTIONS
        self._links_seen_ns = 0
        """How still it was when they were looked at."""
        self._links_due_ns = 0
        """How still it has to be for them to be looked at next."""
        self._taker: threading.Thread | None = None
        """Takes stacks: that may last long, and the pulse must not miss a beat for it."""
        self._arming = threading.RLock()
        self._armed = False

    def start(self) -> None:
        """Start the thread."""
        self._forget_forks = around_forks(
            before=self._disarm_for_fork, after_in_parent=self._arming.release, after_in_child=self._arming.release
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and join it; a forked child has none."""
        self._forget_forks()
        if not self._thread.is_alive():
            return
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2.0)
        if self._taker is not None and threading.current_thread() is not self._taker:
            self._taker.join(timeout=2.0)
        self._disarm()

    def _run(self) -> None:
        while not self._stopped.wait(self._recorder.settings.pulse_seconds):
            with guard("beat"):
                self._beat()
            with guard("tend device calls"):
                self._recorder.tend_device()
            with guard("tend the journal"):
                self._recorder.journal.tick()

    def _beat(self) -> None:
        recorder = self._recorder
        now = time.monotonic_ns()
        limit_ns = self._limit_ns()
        self._watch_progress(now)
        still_ns = now - self._moved_ns
        frame = sys._current_frames().get(recorder.main_thread)
        recorder.write(
            events.Pulse(
                time_ns=now,
                step=recorder.step,
                phase=self._phase(),
                path=recorder.path_number(recorder.sites.at(frame)),
                activity=_activity(frame),
                held_by=_holder(frame),
                waiting=[f.call for f in list(recorder.flights.values()) if f.wait_start_ns][:MAX_WAITING],
                calls=recorder.calls,
                cpu_ns=time.process_time_ns(),
                rss_bytes=self._process.memory_info().rss,
                stall_after_seconds=limit_ns / 1e9,
                still_ns=still_ns,
                links=self._links.established if still_ns > self._links_seen_ns else [],
                unanswered=self._links.unanswered if still_ns > self._links_seen_ns else [],
            )
        )
        self._look_at_links(still_ns, limit_ns)
        del frame  # it would keep the main thread's locals alive until the next beat
        if self._taker is None or not self._taker.is_alive():
            self._arm(limit_ns)
        if now - self._moved_ns > limit_ns and not self._reported and not recorder.user_phases:
            self._reported = True
            self._report_stall((now - self._moved_ns) / 1e9)

    def _look_at_links(self, still_ns: int, limit_ns: int) -> None:
        """Look at the connections where that is due, for the next beat to tell: it may take a while."""
        self._links, self._links_seen_ns = NO_CONNECTIONS, still_ns
        if still_ns < TELLS_LINKS_AT * limit_ns:
            self._links_due_ns = 0
        elif still_ns > self._links_due_ns:
            self._links_due_ns = limit_ns if still_ns <= limit_ns else sys.maxsize
            with guard("look at connections"):
                self._links = connections()

    def _limit_ns(self) -> int:
        """Return the stall limit of the present phase: one rule, here and for every reader of the log."""
        floor = self._recorder.settings.stall_after_seconds * 1e9
        return int(max(floor, LONGEST_GAPS * self._gaps.get(self._phase(), 0)))

    def _phase(self) -> str:
        """Return the phase that the user named, else the inferred one."""
        recorder = self._recorder
        return recorder.user_phases[-1] if recorder.user_phases else recorder.phase

    def _watch_progress(self, now: int) -> None:
        recorder = self._recorder
        seen = (recorder.calls, recorder.progress)
        if seen == self._seen:
            return
        if recorder.step >= WARM_UP_STEPS and not self._reported:
            self._gaps[self._moved_in] = max(self._gaps.get(self._moved_in, 0), now - self._moved_ns)
        self._seen, self._moved_ns, self._moved_in, self._reported = seen, now, self._phase(), False

    def _report_stall(self, seconds: float) -> None:
        if self._recorder.crash_file is not None:
            # Taking stacks halts the process, perhaps for longer than the limit, and that is no frozen process.
            faulthandler.cancel_dump_traceback_later()
        self._taker = threading.Thread(target=self._take_stacks, args=(seconds,), name="distdiag-stacks", daemon=True)
        self._taker.start()

    def _take_stacks(self, seconds: float) -> None:
        with guard("take stacks"):
            source, threads = stacks.take(native=self._recorder.settings.native_stacks, stopped=self._stopped)
            self._recorder.write(
                events.Stack(
                    time_ns=time.monotonic_ns(),
                    reason="stall",
                    source=source,
                    threads=threads,
                    stalled_seconds=round(seconds, 3),
                )
            )

    def _arm(self, limit_ns: int) -> None:
        """Let faulthandler write stacks should this thread never run again because the GIL is held."""
        file = self._recorder.crash_file
        if file is not None:
            with self._arming:
                self._armed = True
                faulthandler.dump_traceback_later(limit_ns / 1e9, file=file)

    def _disarm_for_fork(self) -> None:
        """Take the timer back until the next beat: a child that inherits it hangs when it exits.

        Its end waits for faulthandler's own thread, which the child does not have.
        """
        self._arming.acquire()
        self._disarm()

    def _disarm(self) -> None:
        if self._armed:  # else the timer, if there is one, is the user's
            self._armed = False
            faulthandler.cancel_dump_traceback_later()


def _activity(frame: FrameType | None) -> str | None:
    """Return what a stack is busy with, by the innermost library frame that tells."""
    for _ in range(MAX_STACK_DEPTH):
        if frame is None:
            return None
        filename = frame.f_code.co_filename
        for activity, marks in ACTIVITIES:
            # A module body means that the library is being imported, not used.
            if frame.f_code.co_name != "<module>" and any(mark in filename for mark in marks):
                return activity
        frame = frame.f_back
    return None


def _holder(frame: FrameType | None) -> str | None:
    """Return what a stack waits for, by the outermost of the library's frames at its inner end."""
    found = None
    while frame is not None:
        filename = frame.f_code.co_filename
        if any(mark in filename for mark in DEBUGGERS):
            found = "debugger"
        elif filename.startswith(STANDARD_LIBRARY) and not any(mark in filename for mark in PACKAGES):
            found = next((holder for holder, marks in HOLDERS if any(mark in filename for mark in marks)), found)
        else:
            break
        frame = frame.f_back
    return found
