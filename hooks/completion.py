"""Watches collectives end: exactly where somebody waits for them, by slow polling for the rest.

Only work of CPU backends is held: a CUDA work owns its outputs, and the device decides its end.
"""

import threading
import time
from types import ModuleType
from typing import Any

from distdiag.errors import guard, guarded
from distdiag.hooks._patch import Undo, replace, together, when_imported
from distdiag.recorder import MAX_FLIGHTS, Recorder

BUSY_SECONDS = 0.005
"""Polling costs a launch-bound loop 1.1 % at 2 ms, 0.2 % at 20 ms; waits give exact ends anyway."""
IDLE_SECONDS = 0.020
P2P_NEVER_POLLED = frozenset({"send", "recv", "recv_any_source"})
"""gloo ends these only when somebody waits for them."""


def install(recorder: Recorder) -> Undo:
    """Record the end of calls on CPU backends, by wait and by polling."""
    return when_imported("torch.distributed.distributed_c10d", lambda module: _install(recorder, module))


def _install(recorder: Recorder, c10d: ModuleType) -> Undo:
    waited = c10d.Work.wait
    reaper = Reaper(recorder, waited)
    undos = [reaper.stop]
    undos += [_watch_wait(recorder, owner) for owner in _waitables(c10d)]
    undos.append(_watch_wait_tensor(reaper))
    reaper.start()
    return together(undos)


def _waitables(c10d: ModuleType) -> list[Any]:
    return [c10d.Work, *(each for each in c10d.Work.__subclasses__() if "wait" in vars(each))]


def _watch_wait(recorder: Recorder, owner: Any) -> Undo:
    """Note when a wait on a recorded work begins and ends; written lean, it runs once per collective."""
    wait = owner.wait
    flights, clock = recorder.flights, time.monotonic_ns
    end = guarded("record the end of a call", recorder.end)
    fail = guarded("record a failed call", recorder.fail)

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        flight = flights.get(id(self))
        if flight is None:
            return wait(self, *args, **kwargs)
        flight.wait_start_ns = clock()
        try:
            result = wait(self, *args, **kwargs)
        except BaseException as error:
            if flights.pop(id(self), None) is not None:  # else the poll was faster
                fail(flight, error)
            flight.work = None
            del error
            raise
        if flights.pop(id(self), None) is not None:
            end(flight, clock())
        flight.work = None
        return result

    watched.__name__, watched.__doc__, watched.__wrapped__ = "wait", wait.__doc__, wait  # type: ignore[attr-defined]
    return replace(owner, "wait", watched)


def _watch_wait_tensor(reaper: "Reaper") -> Undo:
    """After a functional collective was waited for, look at once which calls that ended."""
    from distdiag.hooks._dispatch import BELOW, put_in_front, redispatch

    send_on = redispatch("_c10d_functional", "wait_tensor")
    if send_on is None:
        return lambda: None

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        result = send_on(keyset & BELOW, *args, **kwargs)
        with guard("follow wait_tensor"):
            reaper.poll("wait")
        return result

    return put_in_front("_c10d_functional", {"wait_tensor": kernel})


class Reaper:
    """The thread that learns of ends nobody waited for."""

    def __init__(self, recorder: Recorder, wait: Any) -> None:
        self._recorder = recorder
        self._wait = wait
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distdiag-reaper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._recorder.poll = lambda: self.poll("poll")
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, join it and write what is left; a forked child has neither."""
        if not self._thread.is_alive():
            return
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2.0)
        with guard("write the last ends"):
            self.poll("poll")

    def _run(self) -> None:
        while not self._stopped.wait(BUSY_SECONDS if self._recorder.flights else IDLE_SECONDS):
            with guard("reap ends of calls"):
                self.poll("poll")
                self._forget_oldest()

    def poll(self, clock: str) -> None:
        """Note the ends of calls that nobody is waiting for."""
        flights = self._recorder.flights
        for key, flight in list(flights.items()):
            work = flight.work
            if work is None or flight.wait_start_ns or flight.signature.event.op in P2P_NEVER_POLLED:
                continue
            if work.is_completed():
                end_ns = time.monotonic_ns()
                if flights.pop(key, None) is not None:
                    self._recorder.end(flight, end_ns, clock, self._failure(work))
                    flight.work = None
            del work

    def _forget_oldest(self) -> None:
        """Some backends never report completion: their calls must not pile up."""
        flights = self._recorder.flights
        while len(flights) > MAX_FLIGHTS:
            flights.pop(next(iter(flights)), None)

    def _failure(self, work: Any) -> str | None:
        """Return why a completed work failed: a failed work is completed too, and its wait returns at once."""
        try:
            self._wait(work)
        except RuntimeError as error:
            return f"{type(error).__name__}: {str(error)[:500]}"
        return None
