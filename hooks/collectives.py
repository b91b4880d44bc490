"""Watches every collective and point-to-point operation, from Python and from C++, where the dispatcher sees it.

A kernel on the dispatch key ``BackendSelect`` of each ``c10d`` operator writes the call's record and then
lets the call go on to the backend. Nothing of torch is overridden, and the kernels leave without a trace.
"""

import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.errors import guarded
from distdiag.hooks._patch import Undo, when_imported
from distdiag.hooks.groups import learn_group
from distdiag.recorder import Flight, GroupState, Interned, Recorder

MAX_SIGNATURES_PER_SITE = 512
"""A site whose shapes change with every call would otherwise fill memory."""
FNV_PRIME = 16777619
MASK_32 = 0xFFFFFFFF


def install(recorder: Recorder) -> Undo:
    """Put a recording kernel in front of every ``c10d`` operator."""
    return when_imported("torch.distributed.distributed_c10d", lambda module: _install(recorder, module))


def _install(recorder: Recorder, c10d: ModuleType) -> Undo:
    from distdiag.hooks._dispatch import put_in_front, redispatch
    from distdiag.hooks._operators import OPERATORS

    kernels = {}
    for operator in OPERATORS:
        send_on = redispatch("c10d", operator.schema)
        if send_on is not None:
            kernels[operator.schema] = _kernel(recorder, c10d, operator, send_on)
    return put_in_front("c10d", kernels)


def _kernel(recorder: Recorder, c10d: ModuleType, operator: Any, send_on: Any) -> Callable[..., Any]:
    from distdiag.hooks._dispatch import BELOW

    begin = guarded(f"record {operator.op}", _begin(recorder, c10d, operator))
    follow = guarded(f"follow {operator.op}", _follow(recorder, c10d, operator))
    clock, below = time.monotonic_ns, BELOW
    end = guarded("record the end of a call", recorder.end)

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        flight = begin(args)
        try:
            result = send_on(keyset & below, *args, **kwargs)
        except BaseException as error:
            if flight is not None:
                end(flight, clock(), "wait", f"{type(error).__name__}: {str(error)[:500]}")
            # the traceback holds this frame, and with it the tensors
            del args, kwargs, error
            raise
        if flight is not None:
            follow(flight, result)
        return result

    return kernel


def _begin(recorder: Recorder, c10d: ModuleType, operator: Any) -> Callable[[tuple[Any, ...]], Flight | None]:
    """Return the function that writes the record of a call, made for one operator.

    It runs on the path of every collective; each name it uses is bound here for that reason.
    """
    import _thread

    at, getframe, clock = recorder.sites.at, sys._getframe, time.monotonic_ns
    get_ident, exc_info = _thread.get_ident, sys.exc_info
    journal, modules = recorder.journal, recorder.modules
    append = journal.append
    nowhere = recorder.sites.nowhere
    group_at, key_of, p2p, number = operator.group, operator.key, operator.p2p, id(operator)
    intern = _Interning(recorder, operator).intern
    states, coalescing, unbox = recorder.groups, recorder.coalescing, c10d.ProcessGroup.unbox

    def begin(args: tuple[Any, ...]) -> Flight | None:
        group_object = unbox(args[group_at])
        state = states.get(group_object)
        if state is None:
            state = learn_group(recorder, c10d, group_object)
        thread = get_ident()
        site = at(getframe(2).f_back)  # past this function, its guard and the kernel; C++ threads have no more frames
        if site is nowhere and recorder.backward_site is not None:
            site = recorder.backward_site
        key = (number, state, thread, modules.get(thread) if modules else None, key_of(args))
        signature = site.signatures.get(key)
        if signature is None:
            signature = intern(args, site, state, thread, key)
            if signature is None:
                return None
        if p2p:
            state.p2p = sequence = state.p2p + 1
            ending = "}\n"
        else:
            state.collectives = sequence = state.collectives + 1
            chain = state.chain = ((state.chain ^ signature.digest) * FNV_PRIME) & MASK_32
            path_chain = state.path_chain = ((state.path_chain ^ site.digest) * FNV_PRIME) & MASK_32
            ending = f',"chain":{chain},"path_chain":{path_chain}}}\n'
        recorder.calls = call = recorder.calls + 1
        handled = exc_info()[0]
        if state.last_thread != thread or handled is not None or coalescing or recorder.capturing:
            ending = _unusual(recorder, state, thread, handled, coalescing.get(group_object)) + ending
        state.last_thread = thread
        state.last_call = call
        start_ns = clock()
        append(
            f'{{"kind":"call","call":{call},{signature.text}"seq":{sequence},'
            f"{recorder.context}{start_ns}{ending}".encode()
        )
        if journal.segment != signature.segment:
            _rewrite(recorder, signature, state, site)
        flight = Flight(call, signature, start_ns, sequence)
        if signature.on_device:
            recorder.note_arrival(flight, state)
        return flight

    return begin


def _follow(recorder: Recorder, c10d: ModuleType, operator: Any) -> Callable[[Flight, Any], None]:
    """Return the function that keeps a call in mind until its end is known."""
    flights = recorder.flights
    unbox = c10d.Work.unbox
    returns_work = operator.op != "monitored_barrier"

    def follow(flight: Flight, result: Any) -> None:
        if flight.signature.on_device:
            return  # holding the work would hold its outputs
        if not returns_work:
            recorder.end(flight, time.monotonic_ns(), "wait", None)
            return
        work = flight.work = unbox(result[-1] if type(result) is tuple else result)
        flights[id(work)] = flight

    return follow


def _unusual(
    recorder: Recorder,
    state: GroupState,
    thread: int,
    handled: type[BaseException] | None,
    coalesced: int | None,
) -> str:
    """Return the fields that few calls have."""
    fields = ""
    if state.last_thread not in (0, thread) and any(f.call == state.last_call for f in list(recorder.flights.values())):
        fields += ',"contended":true'
    if handled is not None:
        fields += f',"handling":{events.encode_text(handled.__name__)}'
    if coalesced is not None:
        fields += f',"coalesced":{coalesced}'
    if recorder.capturing:
        fields += ',"captured":true'
    return fields


def _rewrite(recorder: Recorder, signature: Interned, state: GroupState, site: Any) -> None:
    """Write what a call refers to into the segment it stands in, so that the segment can be read alone."""
    signature.segment = recorder.journal.segment
    if state.segment != recorder.journal.segment:
        state.segment = recorder.journal.segment
        recorder.write(state.event)
    recorder.path_number(site)
    recorder.write(signature.event)


class _Interning:
    """Makes signatures of one operator, once for each kind of call."""

    def __init__(self, recorder: Recorder, operator: Any) -> None:
        self._recorder = recorder
        self._operator = operator

    def intern(self, args: tuple[Any, ...], site: Any, state: GroupState, thread: int, key: Any) -> Interned | None:
        """Return the signature of a call, None for calls on tensors without data (tracing is no collective)."""
        import threading

        from distdiag.hooks._operators import describe

        if _is_traced(args):
            return None
        recorder = self._recorder
        recorder.signatures += 1
        described = describe(
            self._operator,
            args,
            state.ranks,
            number=recorder.signatures,
            group=state.event.group,
            path=site.number,
        )
        described.module = key[3]
        described.thread = "MainThread" if thread == recorder.main_thread else threading.current_thread().name
        if len(site.signatures) >= MAX_SIGNATURES_PER_SITE:
            site.signatures.clear()
        made = site.signatures[key] = Interned(described)
        return made


def _is_traced(args: tuple[Any, ...]) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    found = args[0]
    while isinstance(found, list | tuple):
        if not found:
            return False
        found = found[0]
    return isinstance(found, FakeTensor) or found.device.type == "meta"
