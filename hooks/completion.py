"""Watches collectives end: exactly where somebody waits for them, by slow polling for the rest.

Only work of CPU backends is held: a CUDA work owns its outputs, and the device decides its end.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from distdiag.errors import guard, guarded
from distdiag.hooks._patch import Undo, replace, together, when_imported
from distdiag.recorder import MAX_FLIGHTS, Flight, Recorder

BUSY_SECONDS = 0.005
"""Polling costs a launch-bound loop 1.1 % at 2 ms, 0.2 % at 20 ms; waits give exact ends anyway."""
IDLE_SECONDS = 0.020
PRECISION = 0.25
"""Of a call's duration: looking at a long one every 5 ms would cost a rank up to 1 %."""
P2P_NEVER_POLLED = frozenset({"send", "recv", "recv_any_source"})
"""Asked whether one of these is completed, gloo's answer says nothing."""
ENDED_BY_WAIT = P2P_NEVER_POLLED | {"reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"}
"""gloo ends these only when somebody waits for them."""
FUNCTIONAL = (
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_out",
    "isend",
    "irecv",
    "batch_p2p_ops",
)
"""Functional operators that issue such calls: ``wait_tensor`` tells their end, and no Python code has their work."""
UNREACHABLE_AFTER_NS = 100_000_000
"""By then a call has long returned its work to whoever wanted it."""
OWN_REFERENCES = 3
"""What ``getrefcount`` counts when the poll alone has a work: a flight, a variable and an argument."""


def install(recorder: Recorder) -> Undo:
    """Record the end of calls on CPU backends, by wait and by polling."""
    return when_imported("torch.distributed.distributed_c10d", lambda module: _install(recorder, module))


def _install(recorder: Recorder, c10d: ModuleType) -> Undo:
    waited = c10d.Work.wait
    reaper = Reaper(recorder, waited)
    undos = [reaper.stop]
    undos += [_watch_wait(recorder, owner) for owner in _waitables(c10d)]
    undos += _Functional(recorder, reaper).install()
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


class _Functional:
    """Follows functional collectives, which are waited for by their output."""

    def __init__(self, recorder: Recorder, reaper: "Reaper") -> None:
        self._recorder = recorder
        self._reaper = reaper
        self._awaited: dict[int, list[Flight]] = {}
        """Calls that only a wait ends, by the address of an output."""

    def install(self) -> list[Undo]:
        """Put kernels in front of the wait, and of what only the wait ends."""
        from distdiag.hooks._operators import put_in_front, redispatch

        sent_on = {name: redispatch("_c10d_functional", name) for name in ("wait_tensor", *FUNCTIONAL)}
        kernels = {name: self._issuing(send_on) for name, send_on in sent_on.items() if send_on}
        if sent_on["wait_tensor"] is None:
            return []
        kernels["wait_tensor"] = self._waiting(sent_on["wait_tensor"])
        return [put_in_front("_c10d_functional", kernels)]

    def _issuing(self, send_on: Any) -> Callable[..., Any]:
        from distdiag.hooks._operators import BELOW

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._recorder.calls
            result = send_on(keyset & BELOW, *args, **kwargs)
            with guard("follow a functional collective"):
                self._await(before, result)
            return result

        return kernel

    def _waiting(self, send_on: Any) -> Callable[..., Any]:
        from distdiag.hooks._operators import BELOW

        def kernel(keyset: Any, tensor: Any) -> Any:
            flights: Sequence[Flight] = ()
            if self._awaited:
                with guard("learn what is waited for"):
                    flights = self._begin_wait(tensor)
            result = send_on(keyset & BELOW, tensor)
            with guard("follow wait_tensor"):
                self._end(flights)
                self._reaper.poll("wait")
            return result

        return kernel

    def _await(self, before: int, outputs: Any) -> None:
        flights = self._recorder.flights
        issued = [(key, each) for key, each in list(flights.items()) if each.call > before]
        mine = [(key, each) for key, each in issued if each.signature.event.op in ENDED_BY_WAIT]
        for key, flight in mine:
            if flights.pop(key, None) is not None:
                flight.work = None  # torch's registry keeps it until the wait
                flights[-flight.call] = flight
        if not mine:
            return
        if len(self._awaited) > MAX_FLIGHTS:
            self._awaited.clear()
        for output in outputs if isinstance(outputs, list | tuple) else [outputs]:
            self._awaited.setdefault(output.data_ptr(), []).extend(flight for _, flight in mine)

    def _begin_wait(self, tensor: Any) -> Sequence[Flight]:
        from distdiag.hooks._operators import is_traced

        if is_traced(tensor):
            return ()
        flights = self._awaited.pop(tensor.data_ptr(), ())
        for flight in flights:
            flight.wait_start_ns = time.monotonic_ns()
        return flights

    def _end(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            if self._recorder.flights.pop(-flight.call, None) is not None:
                self._recorder.end(flight, time.monotonic_ns())


class Reaper:
    """The thread that learns of ends nobody waited for."""

    def __init__(self, recorder: Recorder, wait: Any) -> None:
        self._recorder = recorder
        self._wait = wait
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distdiag-reaper", daemon=True)

    def start(self) -> None:
        """Start the thread."""

        def poll() -> None:
            self.poll("poll")

        self._recorder.poll = poll
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
        pause = IDLE_SECONDS
        while not self._stopped.wait(pause):
            with guard("reap ends of calls"):
                pause = self.poll("poll")
                self._forget_oldest()

    def poll(self, clock: str) -> float:
        """Note the ends of calls that nobody is waiting for; return in how many seconds to look again."""
        flights = self._recorder.flights
        now = time.monotonic_ns()
        pause = IDLE_SECONDS
        for key, flight in list(flights.items()):
            work = flight.work
            if work is None or flight.wait_start_ns:
                continue
            op = flight.signature.event.op
            if op not in P2P_NEVER_POLLED and work.is_completed():
                if flights.pop(key, None) is not None:
                    self._recorder.end(flight, time.monotonic_ns(), clock, self._failure(work))
                    flight.work = None
            elif op not in ENDED_BY_WAIT:
                pause = min(pause, max(BUSY_SECONDS, PRECISION * (now - flight.start_ns) / 1e9))
            elif (
                now - flight.start_ns > UNREACHABLE_AFTER_NS and sys.getrefcount(work) <= OWN_REFERENCES
            ):  # nobody can wait for it any more, and it holds its tensors
                flights.pop(key, None)
                flight.work = None
            del work
        return pause

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
